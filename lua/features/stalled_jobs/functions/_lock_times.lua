-- How long a worker may be silent about its jobs. Each says so where it registers (`lockDuration` in `w:<consumer>`), for
-- others of the same queue may have been told another time.

-- run: {lock = the time of who asks, for those that say nothing: peers, older versions}; remembers what it has read.
G.lock_of_worker = function(q, run, consumer)
  run.locks = run.locks or {}
  local known = run.locks[consumer]
  if known then return known end
  local info = redis.pcall('GET', q.P .. 'w:' .. consumer)
  local own = type(info) == 'string' and string.match(info, '"lockDuration":%s*(%d+)')
  own = G.count_of(own or nil)
  run.locks[consumer] = own > 0 and own <= G.DAY_MS and own or run.lock
  return run.locks[consumer]
end
