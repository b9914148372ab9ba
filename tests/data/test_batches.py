"""Augmentation against a slow oracle, and batches that are functions of (seed, epoch)."""

import math
from dataclasses import replace

import formats
import pytest
import torch
from torch import Tensor

from liebayes import data
from liebayes.data import Augmentation, Batches, Dataset

CROP = Augmentation(2, True)


def dataset(number: int = 23, test: int = 7, augmentation: Augmentation | None = CROP) -> Dataset:
    """Labels are the images' numbers, so that batches show which images they hold."""
    images = formats.pixels(number + test, 3, 8, 8)
    names = tuple(str(k) for k in range(number + test))
    labels = torch.arange(number + test)
    return Dataset(
        "test",
        images[:number],
        labels[:number],
        images[number:],
        labels[number:],
        names,
        (0.4, 0.5, 0.6),
        (0.2, 0.25, 0.3),
        augmentation,
    )


def slow_augmentation(image: Tensor, top: int, left: int, mirrored: bool, padding: int) -> Tensor:
    """One image, pixel by pixel."""
    channels, height, width = image.shape
    out = torch.zeros_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                column = width - 1 - x if mirrored else x
                row_from, column_from = y + top - padding, column + left - padding
                if 0 <= row_from < height and 0 <= column_from < width:
                    out[c, y, x] = image[c, row_from, column_from]
    return out


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 7)])
def test_augmentation_matches_the_slow_one(padding: int, flip: bool, shape: tuple[int, ...]) -> None:
    augmentation = Augmentation(padding, flip)
    images = formats.pixels(30, *shape)
    drawn = augmentation.draw(30, torch.Generator().manual_seed(1))
    expected = torch.stack(
        [slow_augmentation(image, int(t), int(l), bool(m), padding) for image, (t, l, m) in zip(images, drawn, strict=True)]
    )
    out = augmentation.apply(images, drawn)
    assert out.dtype == torch.uint8
    assert out.equal(expected)
    assert augmentation(images, torch.Generator().manual_seed(1)).equal(expected)
    # Floating images are moved the same way.
    assert augmentation.apply(images.float(), drawn).equal(expected.float())


@pytest.mark.parametrize(("padding", "flip"), [(4, True), (1, False), (0, True)])
def test_every_place_and_flip_is_equally_likely(padding: int, flip: bool) -> None:
    """Pearson's statistic of the joint counts, within five standard deviations of its mean."""
    number = 100_000
    top, left, mirrored = Augmentation(padding, flip).draw(number, torch.Generator().manual_seed(0)).unbind(1)
    side = 2 * padding + 1
    cells = side * side * (2 if flip else 1)
    counts = ((top * side + left) * (2 if flip else 1) + mirrored).bincount(minlength=cells)
    assert len(counts) == cells
    statistic = float(((counts - number / cells) ** 2).sum() / (number / cells))
    assert abs(statistic - (cells - 1)) <= 5 * math.sqrt(2 * (cells - 1))


def test_neighbouring_draws_are_independent() -> None:
    drawn = Augmentation(4, True).draw(100_000, torch.Generator().manual_seed(0)).double()
    both = torch.cat([drawn[:-1], drawn[1:]], 1)
    correlation = torch.corrcoef(both.T) - torch.eye(6)
    assert float(correlation.abs().max()) < 5 / math.sqrt(len(both))


def test_bad_augmentation_is_refused() -> None:
    with pytest.raises(ValueError, match="padding must be at least 0"):
        Augmentation(-1)
    with pytest.raises(ValueError, match="expected images of shape"):
        Augmentation().apply(torch.zeros(3, 8, 8), torch.zeros(3, 3))


def test_normalisation() -> None:
    images = formats.pixels(5, 3, 4, 4)
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])
    expected = (images.double() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    ours = data.normalize(images, mean.tolist(), std.tolist())
    assert ours.dtype == torch.float32
    assert torch.allclose(ours.double(), expected, atol=1e-5)
    assert torch.allclose(data.normalize(images, mean.tolist(), std.tolist(), torch.float64), expected, atol=1e-7)
    assert torch.allclose(data.normalize(images, [0.5], [2.0]), (images / 255.0 - 0.5) / 2, atol=1e-6)
    features = torch.randn(6, 3)
    assert torch.allclose(
        data.normalize(features, [1, 2, 3], [1, 2, 4]), (features - torch.tensor([1, 2, 3])) / torch.tensor([1, 2, 4])
    )


def equal(one: list[tuple[Tensor, Tensor]], other: list[tuple[Tensor, Tensor]]) -> bool:
    return len(one) == len(other) and all(a.equal(c) and b.equal(d) for (a, b), (c, d) in zip(one, other, strict=True))


def test_a_batch_is_its_images_cropped_and_normalised() -> None:
    """The whole way, by hand."""
    source = dataset()
    batches = Batches(source, 5, seed=3)
    order = batches.order(2)
    drawn = Augmentation(2, True).draw(23, batches._generator(2, "augmentation"))
    place = 0
    for images, labels in batches.epoch(2):
        assert labels.equal(source.train_labels[order[place : place + 5]])
        for image, label in zip(images, labels, strict=True):
            top, left, mirrored = drawn[place].tolist()
            by_hand = slow_augmentation(source.train_images[label], top, left, bool(mirrored), 2)
            assert image.equal(source.normalize(by_hand[None])[0])
            place += 1
    assert place == 23


def test_an_epoch_has_every_image_once() -> None:
    batches = Batches(dataset(), 5)
    assert len(batches) == 5
    sizes, seen = [], []
    for images, labels in batches.epoch(0):
        assert images.shape == (len(labels), 3, 8, 8)
        assert images.dtype == torch.float32
        sizes.append(len(labels))
        seen += labels.tolist()
    assert sizes == [5, 5, 5, 5, 3]
    assert sorted(seen) == list(range(23))
    dropped = Batches(dataset(), 5, drop_last=True)
    assert len(dropped) == 4
    assert [len(labels) for _, labels in dropped.epoch(0)] == [5, 5, 5, 5]
    # The rest is unchanged.
    assert equal(list(batches.epoch(0))[:4], list(dropped.epoch(0)))


def test_seed_and_epoch_alone_fix_an_epoch() -> None:
    reference = Batches(dataset(), 5, seed=1)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    one = list(reference.epoch(4))
    assert state.equal(torch.get_rng_state()), "the global generator is not ours to move"
    list(reference.epoch(0))
    torch.manual_seed(456)
    assert equal(one, list(reference.epoch(4)))
    assert equal(one, list(Batches(dataset(), 5, seed=1).epoch(4)))
    assert not reference.order(4).equal(reference.order(5))
    assert not reference.order(4).equal(Batches(dataset(), 5, seed=2).order(4))
    # Two iterators at once do not disturb one another.
    both = list(zip(reference.epoch(4), reference.epoch(5), strict=True))
    assert equal([pair[0] for pair in both], one)


def test_crops_change_from_epoch_to_epoch() -> None:
    source = dataset(number=200, augmentation=Augmentation(2, False))
    seen = {}
    for epoch in range(2):
        images, labels = next(Batches(source, 200).epoch(epoch))
        seen[epoch] = images[labels.argsort()]
    same = (seen[0] == seen[1]).flatten(1).all(1).float().mean()
    assert float(same) < 0.2  # 1/25 expected


@pytest.mark.parametrize("start", [0, 1, 3, 4, 5])
def test_resuming_within_an_epoch(start: int) -> None:
    batches = Batches(dataset(), 5, seed=9)
    assert equal(list(batches.epoch(7))[start:], list(batches.epoch(7, start_batch=start)))


@pytest.mark.parametrize("world_size", [2, 3, 6])
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_together_are_one_process(world_size: int, drop_last: bool) -> None:
    single = list(Batches(dataset(number=32), 6, seed=2, drop_last=drop_last).epoch(3))
    ranks = [
        Batches(dataset(number=32), 6, seed=2, drop_last=drop_last, rank=r, world_size=world_size) for r in range(world_size)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    parts = [list(rank.epoch(3)) for rank in ranks]
    # 32 = 5·6 + 2: the last batch of two images feeds two ranks, but not three or six.
    assert len(ranks[0]) == (6 if not drop_last and world_size == 2 else 5)
    for batch in range(len(ranks[0])):
        assert len({len(part[batch][1]) for part in parts}) == 1
        images = torch.cat([part[batch][0] for part in parts])
        labels = torch.cat([part[batch][1] for part in parts])
        assert images.equal(single[batch][0])
        assert labels.equal(single[batch][1])
    assert equal(parts[0][2:], list(ranks[0].epoch(3, start_batch=2)))


def test_a_smaller_last_batch_is_cut_to_equal_parts() -> None:
    ranks = [list(Batches(dataset(number=23), 6, rank=r, world_size=2).epoch(0)) for r in range(2)]
    assert [[len(labels) for _, labels in rank] for rank in ranks] == [[3, 3, 3, 2], [3, 3, 3, 2]]


def test_the_batch_size_does_not_change_the_augmentation() -> None:
    small = torch.cat([images for images, _ in Batches(dataset(), 2).epoch(1)])
    large = torch.cat([images for images, _ in Batches(dataset(), 11).epoch(1)])
    assert small.equal(large)


def test_the_test_split_is_unchanged() -> None:
    source = dataset()
    batches = Batches(source, 4, split="test")
    one, again = list(batches), list(batches)
    assert equal(one, again)
    assert torch.cat([images for images, _ in one]).equal(source.normalize(source.test_images))
    assert torch.cat([labels for _, labels in one]).equal(source.test_labels)
    with pytest.raises(TypeError, match=r"batches\.epoch"):
        iter(Batches(source, 4))
    plain = Batches(source, 4, augment=False, shuffle=False)
    assert torch.cat([images for images, _ in plain]).equal(source.normalize(source.train_images))


def test_tensors() -> None:
    inputs, targets = torch.randn(10, 3, dtype=torch.float64), torch.randn(10)
    batches = Batches((inputs, targets), 4, shuffle=False, dtype=torch.float64)
    assert torch.cat([x for x, _ in batches]).equal(inputs)
    assert torch.cat([y for _, y in batches]).equal(targets)
    tokens = torch.arange(12).view(6, 2)
    assert next(iter(Batches((tokens, torch.zeros(6)), 6, shuffle=False)))[0].equal(tokens)
    images = formats.pixels(6, 1, 4, 4)
    assert torch.allclose(next(iter(Batches((images, torch.zeros(6)), 6, shuffle=False)))[0], images / 255.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "positive multiple"),
        ({"batch_size": "5"}, "positive multiple .* not '5'"),
        ({"batch_size": 5, "world_size": 2}, "multiple of world_size 2, not 5"),
        ({"batch_size": 4, "world_size": 2, "rank": 2}, "rank 2 of 2"),
        ({"batch_size": 4, "world_size": 0}, "rank 0 of 0"),
        ({"batch_size": 24, "drop_last": True}, "23 images make no batch of 24 with drop_last"),
        ({"batch_size": 24, "split": "valid"}, "'train' or 'test'"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Batches(dataset(), **arguments)  # pyright: ignore


def test_bad_arguments_are_refused() -> None:
    batches = Batches(dataset(), 5)
    # At the call, not at the first batch.
    with pytest.raises(ValueError, match="start_batch is 6, but an epoch has 5"):
        batches.epoch(0, start_batch=6)
    with pytest.raises(ValueError, match="start_batch must be at least 0"):
        batches.epoch(0, start_batch=-1)
    with pytest.raises(ValueError, match="epoch must be at least 0"):
        batches.epoch(-1)
    with pytest.raises(ValueError, match="3 inputs, but 2 targets"):
        Batches((torch.zeros(3, 1), torch.zeros(2)), 1)
    for bad in ("digits", torch.zeros(2, 3), (torch.zeros(3, 1).numpy(), torch.zeros(3))):
        with pytest.raises(ValueError, match=f"a Dataset, such as .* not a {type(bad).__name__}"):
            Batches(bad, 3)  # pyright: ignore
    with pytest.raises(ValueError, match="0 images make no batch"):
        Batches((torch.zeros(0, 1), torch.zeros(0)), 1)


def test_without_augmentation_nothing_is_moved() -> None:
    source = replace(dataset(), augmentation=None)
    images, labels = next(Batches(source, 23).epoch(0))
    assert images.equal(source.normalize(source.train_images[labels]))
    augmented, _ = next(Batches(dataset(), 23).epoch(0))
    assert not augmented.equal(images)
    assert next(Batches(dataset(), 23, augment=False).epoch(0))[0].equal(images)
