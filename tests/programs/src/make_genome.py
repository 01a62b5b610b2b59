"""make_genome.py FOLDER: writes a genome of a million bases, 4,000 reads of it with errors, and 200 reads as FASTA."""
import random
import sys

r = random.Random(11)
genome = "".join(r.choices("ACGT", k=1000000))
with open(f"{sys.argv[1]}/genome.fa", "w") as out:
    out.write(">g\n" + "\n".join(genome[i:i + 70] for i in range(0, len(genome), 70)) + "\n")
with open(f"{sys.argv[1]}/reads.fq", "w") as out, open(f"{sys.argv[1]}/some.fa", "w") as some:
    for n in range(4000):
        at = r.randrange(len(genome) - 150)
        read = list(genome[at:at + 150])
        for _ in range(3):
            read[r.randrange(150)] = r.choice("ACGT")
        read = "".join(read)
        out.write(f"@r{n}\n{read}\n+\n{'I' * 150}\n")
        if n < 200:
            some.write(f">r{n}\n{read}\n")
