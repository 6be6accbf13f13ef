-- Define the function tables of the features. This file runs before all others, so their order does not matter.

G.adding, G.budgets, G.checks, G.finishing, G.flows, G.groups, G.results = {}, {}, {}, {}, {}, {}, {}
G.fair, G.ranks, G.limit_ttl = {}, {}, {}
G.finish_kinds, G.rescheduling, G.schedulers, G.sources, G.staging = {}, {}, {}, {}, {}
G.subscriptions, G.suspension = {}, {}

-- Record a change of a job's state: (q, id, state, now, worker), or return the fields that record it:
-- (q, id, timeline so far, state, now, worker). Our own library replaces both (features/timeline).
G.note_state = function() end
local NO_FIELDS = {}
G.timeline_fields = function() return NO_FIELDS end
