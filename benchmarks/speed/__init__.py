"""How long the rule takes beside what else there is: `python benchmarks/speed` (docs/speed.md).

    quiet.py        whether other processes take the cores, and who
    contest.py      contenders in turn, several rounds; limits on the ratio of medians
    sizes.py        how large the work is: full, quick, tiny
    steps.py        sample and step without a network: rows 1 to 3
    networks.py     training and prediction: rows 4 to 7
    by_hand.py      what rows 4, 5 and 7 are measured against: plain torch
    floats.py       memory: row 8
    scaling.py      cost with parameters, samples and ranks (ranks.py is one of their processes); picture.py draws it
    report.py       the table, on the screen and in docs/speed.md
"""
