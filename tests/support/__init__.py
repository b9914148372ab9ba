"""What several test files share: groups and bases to run over, random elements, small problems, processes, behaviours."""
