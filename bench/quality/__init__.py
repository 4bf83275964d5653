"""How good recommendations are, against count baselines, on real data: `make bench NAME=quality [QUICK=1]`."""
