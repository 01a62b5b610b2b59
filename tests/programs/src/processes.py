import multiprocessing

table = [bytes([i % 251]) * 3000 for i in range(4000)]


def work(part):
    own = [t[::-1] for t in table[part::8]]
    return sum(sum(t[:40]) for t in own)


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(work, range(8)), sum(len(t) for t in table))
