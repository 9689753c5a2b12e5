/* All kernels for one instruction set and one model type.
 *
 * The including file defines VW, BF16, DP, TILE_ROWS, NAME and KERNELS, and SCORE_ROWS and SCORE_GROUPS, or AMX. A component
 * is a few phases; each has a function that computes a piece into memory of the thread and one that stores it (pieces.c).
 */
#include "native.h"
#include "vec.h"

#include "gemm.h"

static void put_at(const float *x, int n, at *to) {
    int i = 0;
    for (; i + VW <= n; i += VW)
        store_at(to + i, load(x + i));
    if (i < n) {
        at part[VW];
        store_at(part, load_part(x + i, n - i));
        memcpy(to + i, part, (n - i) * sizeof *to);
    }
}

static void put_st(const float *x, int n, st *to) {
    int i = 0;
    for (; i + VW <= n; i += VW)
        store_st(to + i, load(x + i));
    if (i < n)
        store_st_part(to + i, load_part(x + i, n - i), n - i);
}

/* Columns of q, and of k or v, padded to panels; elements of a row of qkv before its keys, and before its values. */
static long q_columns(const bw_comp *m) { return bw_round((long)m->heads * m->head_dim, BW_PANEL); }
static long kv_columns(const bw_comp *m) { return bw_round((long)m->kv_heads * m->head_dim, BW_PANEL); }
static long keys_from(const bw_comp *m) { return q_columns(m); }
static long values_from(const bw_comp *m) { return keys_from(m) + kv_columns(m); }
static long qkv_columns(const bw_comp *m) { return values_from(m) + kv_columns(m); }

#include "rows.h"

#include "rotary.h"

#include "attention.h"

#include "bottleneck.h"

#include "argmax.h"

#define ROWS_ELEMENTS 2048 /* elements of the rows of a piece */

static void add_phase(bw_call *c, int comp, int stage, long items, long each) {
    if (each < 1)
        each = 1;
    c->phases[c->n_phases++] =
        (bw_phase){.comp = comp, .stage = stage, .items = (int)items, .each = (int)each, .pieces = (int)((items + each - 1) / each)};
}

/* Returns the rows of a piece: about a microsecond's work, if the thread can keep them. */
static long rows_together(long width, long ld) {
    long each = ROWS_ELEMENTS / width, most = BW_OWN / (4 * ld);
    return each < most ? each : most;
}

static void add_product(const bw_ctx *x, bw_call *c, int comp, int stage, long columns, long width, int branches) {
    long units = (width + KS - 1) / KS;
    int panels = (int)(bw_round(columns, BW_PANEL) / BW_PANEL);
    product g = {.rows = c->tokens, .panels = panels, .each = panels_together(c->tokens, units, panels, branches, x->threads)};
    c->phases[c->n_phases++] = (bw_phase){.comp = comp, .stage = stage, .items = panels, .each = g.each, .pieces = product_pieces(&g)};
}

/* Returns the most panels of an A that any group has for a product. */
static int low_panels(const bw_call *c, int comp, int second) {
    int most = 0;
    for (int i = 0; i < c->n_groups; i++) {
        int columns = c->groups[i].deltas[comp].columns[second];
        most = columns > most ? columns : most;
    }
    return (most + BW_PANEL - 1) / BW_PANEL;
}

/* Adds the phase of a product's low-rank terms, which need the rows times their As. */
static void add_low(bw_call *c, int comp, int second) {
    int panels = low_panels(c, comp, second);
    if (panels)
        add_phase(c, comp, second ? BW_LOW_SECOND : BW_LOW_FIRST, (long)c->n_lows * panels, 1);
}

/* Whether a norm would be a single piece. Every thread then norms the product's rows for itself, which saves a phase. Not
 * so if another phase reads them. */
static int few_rows(const bw_call *c, const bw_comp *m, const bw_layout *l) {
    return c->tokens <= rows_together(m->width, 2 * l->ld_x) && !low_panels(c, (int)(m - c->comps), 0);
}

static void plan(const bw_ctx *x, bw_call *c, const bw_comp *m, int comp) {
    const bw_layout *l = c->layouts + comp;
    long rows = c->tokens, in_row = rows_together(m->width, l->ld_x);
    if (m->kind == BW_EMBEDDING) {
        add_phase(c, comp, BW_EMBED, rows, in_row);
        return;
    }
    if (!few_rows(c, m, l))
        add_phase(c, comp, BW_NORM, rows, in_row);
    add_low(c, comp, 0);
    if (m->kind == BW_HEAD) {
        add_product(x, c, comp, BW_LOGITS, m->inner, m->width, 1);
        return;
    }
    if (m->kind == BW_ATTENTION) {
        add_product(x, c, comp, BW_QKV, qkv_columns(m), m->width, 1);
        if (m->qk_whole)
            add_phase(c, comp, BW_NORM_WHOLE, rows, rows_together(m->width, l->ld_c));
        add_phase(c, comp, BW_ROTATE, rows * m->kv_heads, heads_together(x, m, rows));
        add_phase(c, comp, BW_ATTEND, (long)c->n_tiles[l->tile_size] * m->kv_heads, 1);
        add_low(c, comp, 1);
        add_product(x, c, comp, BW_PROJECT, m->width, (long)m->heads * m->head_dim, 1);
    } else {
        add_product(x, c, comp, BW_UP, m->inner, m->width, m->gated ? 2 : 1);
        add_low(c, comp, 1);
        add_product(x, c, comp, BW_PROJECT, m->width, m->inner, 1);
    }
    if (m->adapted)
        add_phase(c, comp, BW_ADAPT, (long)c->n_lows * ADAPT_PARTS, 1);
    if (!bw_plain(m) && m->side != BW_KEEP)
        add_phase(c, comp, BW_ADD, rows, in_row);
}

/* Returns the product of a phase, except the memory that the thread keeps. */
static product product_of(const bw_ctx *x, const bw_call *c, const bw_phase *f, const bw_comp *m, const bw_layout *l) {
    int attention = m->kind == BW_ATTENTION;
    product g = {.kind = TO_FLOAT, .branches = 1, .x = (const at *)(x->scratch + l->x), .ld_x = l->ld_x,
                 .units = (m->width + KS - 1) / KS, .rows = c->tokens, .panels = f->items, .each = f->each, .divisor = 1.0f};
    g.part[0] = (packed){m->w[0], m->b[0], f->items, 0, 0};
    if (f->stage == BW_QKV) {
        g.part[0].panels = (int)(q_columns(m) / BW_PANEL);
        for (int i = 1; i < BW_PARTS; i++)
            g.part[i] = (packed){m->w[i], m->b[i], (int)(kv_columns(m) / BW_PANEL), 0, 0};
        g.to = x->scratch + l->c;
        g.ld_to = l->ld_c;
        g.columns = (int)qkv_columns(m);
    } else if (f->stage == BW_LOGITS) {
        g.to = c->logits;
        g.ld_to = g.columns = m->inner;
        g.divisor = m->factor;
        g.softcap = m->softcap;
    } else if (f->stage == BW_UP) {
        g.kind = m->gated ? TO_GATED : TO_ACTIVATED;
        g.branches = m->gated ? 2 : 1;
        g.part[g.branches - 1] = (packed){m->w[1], m->b[1], f->items, 0, 0};
        g.activation = m->activation;
        g.to = x->scratch + l->o;
        g.ld_to = l->ld_o;
        g.columns = m->inner;
    } else {
        g.x = (const at *)(x->scratch + l->o);
        g.ld_x = l->ld_o;
        g.part[0] = (packed){m->w_out, m->b_out, f->items, 0, 0};
        g.units = ((attention ? (long)m->heads * m->head_dim : m->inner) + KS - 1) / KS;
        g.columns = m->width;
        g.kind = bw_plain(m) ? TO_RESIDUAL : TO_FLOAT;
        g.to = bw_plain(m) ? c->hidden : x->scratch + (m->side == BW_KEEP ? l->side : l->y);
        g.ld_to = bw_plain(m) ? m->width : l->ld_x;
    }
    return g;
}

/* Returns the changes that the groups of a call make to the product of a phase. */
static changes changes_of(const bw_ctx *x, const bw_call *c, const bw_phase *f) {
    return (changes){.call = c, .t = (const at *)x->low, .ld = x->ld_low, .comp = f->comp, .second = f->stage == BW_PROJECT};
}

static low_work low_of(const bw_ctx *x, const bw_call *c, const bw_phase *f, const bw_comp *m, const bw_layout *l, char *own) {
    int second = f->stage == BW_LOW_SECOND;
    long width = !second ? m->width : m->kind == BW_ATTENTION ? (long)m->heads * m->head_dim : m->inner;
    return (low_work){.call = c, .x = (const at *)(x->scratch + (second ? l->o : l->x)), .t = (at *)x->low, .own = (float *)own,
                      .ld_x = second ? l->ld_o : l->ld_x, .ld_t = x->ld_low, .units = (width + KS - 1) / KS,
                      .comp = f->comp, .second = second, .panels = f->items / c->n_lows};
}

static void run(bw_ctx *x, const bw_call *c, const bw_phase *f, int thread, uint64_t now) {
    const bw_comp *m = c->comps + f->comp;
    const bw_layout *l = c->layouts + f->comp;
    char *own = x->own + thread * x->own_bytes;
    rows_work rows = {c, m, l, x->scratch, own, c->tokens, f->each};
    switch (f->stage) {
    case BW_EMBED:
        bw_pieces(x, c, f, thread, now, embed, put_hidden, &rows);
        break;
    case BW_NORM:
        bw_pieces(x, c, f, thread, now, norm_rows, put_normed, &rows);
        break;
    case BW_NORM_WHOLE:
        bw_pieces(x, c, f, thread, now, norm_whole, put_whole, &rows);
        break;
    case BW_ADD:
        bw_pieces(x, c, f, thread, now, add_rows, put_hidden, &rows);
        break;
    case BW_ROTATE: {
        rotary_work w = {x, c, m, l, own, f->each, f->items};
        bw_pieces(x, c, f, thread, now, rotate_heads, put_heads, &w);
        break;
    }
    case BW_ATTEND: {
        attention_work w = attention_of(x, c, m, l, own, f, now);
        bw_pieces(x, c, f, thread, now, attend_item, put_item, &w);
        break;
    }
    case BW_ADAPT: {
        adapt_work w = {x, c, m, l, own, f->comp};
        bw_pieces(x, c, f, thread, now, adapt_rows, put_adapted, &w);
        break;
    }
    case BW_LOW_FIRST:
    case BW_LOW_SECOND: {
        low_work w = low_of(x, c, f, m, l, own);
        bw_pieces(x, c, f, thread, now, low_rows, put_low, &w);
        break;
    }
    default: {
        product g = product_of(x, c, f, m, l);
        changes h = changes_of(x, c, f);
        g.changed = c->n_groups ? &h : NULL;
        g.own = (float *)own;
        if (f->stage != BW_PROJECT && few_rows(c, m, l)) {
            rows.own = own + BW_OWN / 2;
            rows.each = c->tokens;
            norm_rows(&rows, 0);
            g.x = (const at *)rows.own;
        }
        bw_pieces(x, c, f, thread, now, multiply, put_product, &g);
    }
    }
}

const bw_kernels KERNELS = {NAME, plan, run, best_token, allowed_tokens};
