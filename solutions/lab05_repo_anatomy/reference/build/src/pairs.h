/* Visible (query, key) pairs of a mask aligned bottom-right. */
#ifndef MINI_PAIRS_H
#define MINI_PAIRS_H

#define MINI_VERSION 1

/* Pairs with key <= query + seqlen_k - seqlen_q when causal, all of them otherwise. */
long long visible_pairs(long long seqlen_q, long long seqlen_k, int causal);

#endif
