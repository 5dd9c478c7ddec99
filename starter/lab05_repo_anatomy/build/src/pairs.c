#include "pairs.h"

long long visible_pairs(long long seqlen_q, long long seqlen_k, int causal)
{
    long long total = 0;
    if (!causal)
        return seqlen_q * seqlen_k;
    for (long long query = 0; query < seqlen_q; query++) {
        long long visible = query + seqlen_k - seqlen_q + 1;
        total += visible < 0 ? 0 : visible;
    }
    return total;
}
