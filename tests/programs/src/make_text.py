"""make_text.py MB: prints a text of random words in lines, which is the same each time."""
import random
import sys

r = random.Random(7)
words = ["".join(r.choice("etaoinshrdlucmfwyp") for _ in range(r.randint(2, 9))) for _ in range(4000)]
words += ["the", "room", "house", "of", "apart"] * 100
left = int(sys.argv[1]) << 20
while left > 0:
    line = " ".join(r.choices(words, k=r.randint(5, 30)))
    left -= len(line) + 1
    print(line)
