-- Determine the lock duration of a worker. Each worker registers its own (`lockDuration` in `w:<consumer>`), since
-- workers of one queue may be configured differently.

-- run: {lock = the caller's lock duration, for workers that register none: peers, older versions}; caches the durations
-- read.
G.lock_of_worker = function(q, run, consumer)
  run.locks = run.locks or {}
  local known = run.locks[consumer]
  if known then return known end
  local info = G.pcall('GET', q.P .. 'w:' .. consumer)
  local own = type(info) == 'string' and string.match(info, '"lockDuration":%s*(%d+)')
  own = G.count_of(own or nil)
  run.locks[consumer] = own > 0 and own <= G.DAY_MS and own or run.lock
  return run.locks[consumer]
end
