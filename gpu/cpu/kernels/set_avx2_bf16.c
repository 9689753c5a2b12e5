/* Kernels in bfloat16 for processors with AVX2 and FMA. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#define VW 8
#define BF16 1
#define DP 0
#define TILE_ROWS 2
#define SCORE_ROWS 6
#define SCORE_GROUPS 1
#define KERNELS bw_avx2_bf16
#define NAME "avx2"
#include "body.h"
#endif
