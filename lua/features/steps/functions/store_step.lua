-- store_step: store a step of a running attempt, or its new state (features/steps/steps.lua).
-- KEYS 1 meta   ARGV 1 packed {id, fence, processed_on, step}   -> status (0 ok, 2 gone, 3 stale)
-- step: {number, how often it was stored, text}. Bound: constant.

G.export('store_step', { 'allow-oom' }, function(q, r) return G.steps.store_of_attempt(q, r, G.now(q)) end)
