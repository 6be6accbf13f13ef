-- Tables of functions by feature. They exist before any other file runs, so the order of the files does not matter.

G.adding, G.budgets, G.checks, G.finishing, G.flows, G.groups = {}, {}, {}, {}, {}, {}
G.finish_kinds, G.schedules, G.staging, G.subscriptions, G.suspension = {}, {}, {}, {}, {}
