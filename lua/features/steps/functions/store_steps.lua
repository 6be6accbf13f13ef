-- store_steps: store steps of running attempts, or their new states (features/steps/steps.lua).
-- KEYS 1 meta   ARGV 1 packed [step ...]   -> packed [status (0 ok, 2 gone, 3 stale) ...]
-- step: {id, fence, processed_on, {number, how often it was stored, text}}. Bound: 16 steps.

G.export('store_steps', { 'allow-oom' }, function(q, r)
  local now, statuses = G.now(q), {}
  for i, row in ipairs(r.steps) do
    statuses[i] = G.steps.store_of_attempt(q, now, row)
  end
  return statuses
end)
