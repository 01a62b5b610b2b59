"""The parts of benches/programs.py: the list of programs, one timed run, swap as a peer, and the table."""
