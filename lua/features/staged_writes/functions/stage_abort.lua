-- write_abort: abort a write, or one driver's part of it. KEYS 1 meta
--   ARGV 1 packed {write, query, batch, home, keep ms, driver, cursor, changes, is home 0|1}
--   -> packed {state, queues, cursor}
--   driver: its attempts only, and the whole write if no other driver is registered; '' = the whole write
--   changes: without a driver, -1 or the count returned by `writes`: nothing happens if the write has changed since
--   'more' = call again with the cursor; 'open': other drivers continue; 'aborted'; 'committed' and 'done' are
--   unchanged. keep 0: not remembered. queues: the other queues of the write.
-- Bound: S.LISTS_MAX attempts.

local S = G.staging

local function abort_all(q, w, r, state, queues)
  if state ~= 'absent' or r.keep > 0 then
    -- From here on no piece is accepted.
    redis.call('HSET', w.manifest, 'state', 'aborted', 'home', r.home, 'query', r.query)
    redis.call('PEXPIRE', w.manifest, math.max(r.keep, 60000))
  end
  if S.delete_some(w) then return { state = 'more', queues = queues, cursor = '0' } end
  S.finish(q, w, 'aborted', r.keep)
  return { state = 'aborted', queues = queues, cursor = '0' }
end

-- A call of this driver that was sent before the abort may arrive after it: its ballot must not commit any more.
local function leave(q, w, driver, cursor)
  if cursor == '0' then
    redis.call('SREM', w.drivers, driver)
    S.raise_ballot(q, w, 'aborted', 0)
    S.touch(q, w)
  end
  return S.delete_some_of(w, driver, cursor)
end

-- Another queue has no list of drivers: keys left there belong to others.
local function leave_beside(q, w, driver, cursor, state)
  local left = S.delete_some_of(w, driver, cursor)
  if left ~= '0' then return 'more', left end
  if state == 'absent' or redis.call('SCARD', w.tried) > 0 then return state, left end
  S.finish(q, w, 'aborted', 0)
  return 'aborted', left
end

local function has_others(w, driver)
  return redis.call('SCARD', w.drivers) > redis.call('SISMEMBER', w.drivers, driver)
end

G.export('write_abort', { 'allow-oom' }, function(q, r)
  local w, state = S.read(q, r)
  local driver, cursor, at_home = r.driver, r.cursor, r.is_home == 1
  if state == 'committed' or state == 'done' then
    return { state = state, queues = {}, cursor = '0' }
  end
  local queues = S.queues_of(w)
  if driver == '' then
    local changes = G.count_of(redis.call('HGET', w.manifest, 'changes'))
    if state ~= 'aborted' and r.changes >= 0 and r.changes ~= changes then
      return { state = state, queues = queues, cursor = '0' }
    end
    return abort_all(q, w, r, state, queues)
  end
  if not at_home then
    local after, left = leave_beside(q, w, driver, cursor, state)
    return { state = after, queues = queues, cursor = left }
  end
  if state == 'open' and (cursor ~= '0' or has_others(w, driver)) then
    local left = leave(q, w, driver, cursor)
    return { state = left == '0' and 'open' or 'more', queues = queues, cursor = left }
  end
  return abort_all(q, w, r, state, queues)
end)
