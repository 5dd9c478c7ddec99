"""lab04's judge: memory requests, warps, occupancy, and the CUDA and Triton kernels of the copies."""
