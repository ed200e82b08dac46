#!/usr/bin/env python3
"""Prints a tree of drafts for heads, as --speculative-config takes it (speculative_token_tree): the N drafts that are
likeliest to be right, if the first guess at a depth is right in `--top` of the cases and each further rank in a share of the rest.

    tools/demo_model/medusa_tree.py 16 --top 0.70,0.61,0.57,0.52
"""

import argparse
import heapq

# Of the cases in which the first guess is wrong; by rank from the second on.
SHARES = [0.35, 0.17, 0.10, 0.07, 0.05, 0.04, 0.03, 0.025, 0.02, 0.018, 0.015, 0.012, 0.01, 0.01, 0.01, 0.01, 0.008, 0.008, 0.008]


def likeliest(count, top):
    odds = [[first, *((1 - first) * share for share in SHARES)] for first in top]
    drafts, heap = [], []

    def offer(parent, odds_of_parent, rank):
        if len(parent) < len(odds) and rank <= len(SHARES):
            heapq.heappush(heap, (-odds_of_parent * odds[len(parent)][rank], parent, rank, odds_of_parent))

    offer((), 1.0, 0)
    while len(drafts) < count and heap:
        negative, parent, rank, odds_of_parent = heapq.heappop(heap)
        drafts.append((*parent, rank))
        offer(parent, odds_of_parent, rank + 1)
        offer(drafts[-1], -negative, 0)
    return sorted(drafts, key=lambda draft: (len(draft), draft))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="drafts, at most 63")
    parser.add_argument("--top", default="0.70,0.61,0.57,0.52", help="how often the first guess at each depth is right, for as many depths")
    args = parser.parse_args()
    print(likeliest(args.count, [float(share) for share in args.top.split(",")]))


if __name__ == "__main__":
    main()
