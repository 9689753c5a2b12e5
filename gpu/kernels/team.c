/* Whether the other threads help with a call of few tokens.
 *
 * Such a call waits for parameters from memory. Where one core takes all that memory gives, or a stranger has the other cores,
 * a team is no faster than the caller alone, and late pieces cost it time. So both are tried: now and then some calls are
 * computed the other way. The team stays where it is faster by more than a little, as its threads take cores from others;
 * the worse the other way was, the rarer it is tried again. No bit depends on it. Calls of more tokens wait for arithmetic,
 * where a second core helps always: they are the team's.
 */
#include "native.h"

#include <string.h>

#define FEW_TOKENS 8
#define TRIAL 4            /* calls, of which the first does not count: threads wake, caches are cold */
#define BETWEEN 64         /* calls between trials, where both ways take the same time */
#define MOST_BETWEEN 16384
#define WORTH 0.95f        /* of the time alone: for less gain other cores are better left to others */
#define NEW_SHARE 0.25f    /* weight of a measurement beside those before it */

static uint32_t key_of(const bw_call *call) {
    uint32_t key = 2166136261u;
    const int32_t parts[] = {call->tokens, call->n_phases, call->phases[0].pieces, call->phases[call->n_phases / 2].pieces};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        key = (key ^ (uint32_t)parts[i]) * 16777619u;
    return key | 1;
}

/* What is known of calls like this one; null: it is not a matter of choice. */
bw_pace *bw_pace_of(bw_ctx *x, const bw_call *call) {
    if (x->threads == 1 || call->tokens > FEW_TOKENS)
        return NULL;
    uint32_t key = key_of(call);
    bw_pace *pace = x->paces + key / 2 % BW_PACES;
    if (pace->key != key) {
        memset(pace, 0, sizeof *pace);
        pace->key = key;
        pace->helped = 1;
        pace->left = BETWEEN;
    }
    return pace;
}

/* Whether the next such call is the team's. */
int bw_pace_next(const bw_pace *pace) { return pace->trial ? !pace->helped : pace->helped; }

static void measured(float *time, float ns) { *time = *time ? *time + NEW_SHARE * (ns - *time) : ns; }

/* The call took so long. */
void bw_pace_took(bw_pace *pace, int64_t ns) {
    if (!pace->trial) {
        measured(&pace->ns[pace->helped], (float)ns);
        if (--pace->left <= 0)
            pace->trial = TRIAL;
        return;
    }
    if (pace->trial < TRIAL)
        measured(&pace->ns[!pace->helped], (float)ns);
    if (--pace->trial)
        return;
    float alone = pace->ns[0], team = pace->ns[1];
    pace->helped = team < WORTH * alone;
    float slower = alone < team ? team / alone : alone / team;
    float between = BETWEEN * (1 + 16 * (slower - 1));
    pace->left = between < MOST_BETWEEN ? (int32_t)between : MOST_BETWEEN;
}
