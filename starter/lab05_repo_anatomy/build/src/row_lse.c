#include "row_lse.h"

#include <math.h>

void row_lse(const float *scores, float *out, long rows, long cols)
{
    for (long row = 0; row < rows; row++) {
        const float *entries = scores + row * cols;
        double row_max = -INFINITY, row_sum = 0.0;
        for (long col = 0; col < cols; col++)
            if (entries[col] > row_max)
                row_max = entries[col];
        if (isinf(row_max) && row_max < 0) { /* nothing to subtract from: -inf - -inf would be NaN */
            out[row] = -INFINITY;
            continue;
        }
        for (long col = 0; col < cols; col++)
            row_sum += exp(entries[col] - row_max);
        out[row] = (float)(row_max + log(row_sum));
    }
}
