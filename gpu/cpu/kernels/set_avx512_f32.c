/* Kernels in float32 for processors with AVX-512. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#define VW 16
#define BF16 0
#define DP 0
#define TILE_ROWS 12
#define SCORE_ROWS 6
#define SCORE_GROUPS 4
#define KERNELS bw_avx512_f32
#define NAME "avx512"
#include "body.h"
#endif
