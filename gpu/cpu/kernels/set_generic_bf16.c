/* Kernels in bfloat16 for any processor, without a particular vector extension. */
#define VW 4
#define BF16 1
#define DP 0
#define TILE_ROWS 1
#define SCORE_ROWS 3
#define SCORE_GROUPS 1
#define KERNELS bw_generic_bf16
#define NAME "generic"
#include "body.h"
