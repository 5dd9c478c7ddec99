/* Natural log-sum-exp of the rows of a matrix. */
#ifndef MINI_ROW_LSE_H
#define MINI_ROW_LSE_H

/* scores: rows x cols, row-major, entries finite or -inf; out: rows. A row without a finite entry gives -inf. */
void row_lse(const float *scores, float *out, long rows, long cols);

#endif
