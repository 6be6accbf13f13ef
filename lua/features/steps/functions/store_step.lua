-- store_step: store a step of a running attempt, or its new state (features/steps/steps.lua).
-- KEYS 1 meta   ARGV 1 packed {id, fence, processed_on, step}   -> status (0 ok, 2 gone, 3 stale)
-- step: {number, how often it was stored, bytes of its result more than before, text}. Bound: constant.

G.export('store_step', { 'allow-oom' }, function(q, r)
  local rejected = G.reject_call(q, r)
  if rejected then return rejected end
  G.steps.store(q, r.id, G.now(q), r.step)
  return G.OK
end)
