-- Define the function tables of the features. This file runs before all others, so their order does not matter.

G.adding, G.batches, G.budgets, G.checks, G.finishing, G.flows, G.groups, G.results = {}, {}, {}, {}, {}, {}, {}, {}
G.fair, G.ranks, G.limit_ttl = {}, {}, {}
G.finish_kinds, G.rescheduling, G.schedulers, G.sources, G.staging = {}, {}, {}, {}, {}
G.steps, G.subscriptions, G.suspension = {}, {}, {}

local function nothing() end

-- Record a change of a job's state. Our own library replaces these functions (features/timeline).
G.note_state, G.note_reported, G.timeline, G.new_timeline = nothing, nothing, nothing, nothing
