/* Kernels in float32 for any processor, without a particular vector extension. */
#define VW 4
#define BF16 0
#define DP 0
#define TILE_ROWS 1
#define SCORE_ROWS 3
#define SCORE_GROUPS 1
#define KERNELS bw_generic_f32
#define NAME "generic"
#include "body.h"
