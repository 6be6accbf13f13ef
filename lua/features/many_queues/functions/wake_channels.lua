-- pass_wake_up: wake another worker, because the one that was woken up cannot fetch.
-- KEYS 1 meta   -> 1
-- Bound: one wake-up.

G.export('pass_wake_up', { 'allow-oom' }, function(q)
  G.wake(q, 1)
  return 1
end)
