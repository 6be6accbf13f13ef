-- write_open: return the state of a write, and begin it. KEYS 1 meta of its home
--   ARGV 1 packed {write, home, query, batch, ttl ms, create 0|1, queue, keep ms, driver}   -> packed {state, ballot}
--   query, batch: of a streaming write, else '' and 0; queue: '' or one that is about to be staged to as well
--   driver: '' or a token; with create it is registered, without it must be: 'aborted' if it is not. Also 'full': the
--   write has too many queues.
-- write_stage: store a piece of a write. KEYS 1 meta of any queue of it
--   ARGV 1 packed {write, home, query, batch, attempt, seq, ttl ms, create 0|1, unique 0|1, keep ms, driver}, 2 the
--   argument of an add
--   -> packed {state, id}: 'open' = it is stored (also if it already was); 'lost' = earlier pieces are missing;
--   'duplicate' = with `unique`, a job with that id exists; any other state = the write accepts no more pieces
-- errors: OOM (not allow-oom: a full server rejects new jobs). Bound: one piece; with `unique` one read per row.

local S = G.staging

G.export('write_open', {}, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local w = S.write(q, r[1])
  local state = S.state(q, w, r[3], r[4])
  -- An aborted write may be tried again under its own name.
  if r[6] == 1 and (state == 'absent' or state == 'aborted') then
    S.begin(q, w, r[2], r[3], r[5], r[8])
    state = 'open'
  end
  if state == 'open' and r[6] == 1 then
    if r[9] ~= '' then S.add_driver(w, r[9]) end
    S.touch(q, w)
    S.extend(w, r[5])
  elseif state == 'open' and not S.has_driver(w, r[9]) then
    return cmsgpack.pack({ 'aborted', '' })
  end
  if state == 'open' and r[7] ~= '' then
    if redis.call('SCARD', w.queues) >= S.QUEUES_MAX and redis.call('SISMEMBER', w.queues, r[7]) == 0 then
      return cmsgpack.pack({ 'full', '' })
    end
    redis.call('SADD', w.queues, r[7])
    S.touch(q, w)
    S.extend(w, r[5])
  end
  return cmsgpack.pack({ state, S.ballot(w) })
end)

local function existing_job(q, packed)
  for _, row in ipairs(cmsgpack.unpack(packed)[1]) do
    local id = row[4]
    if id and id ~= '' and redis.call('EXISTS', q.J .. id) == 1 then return id end
  end
  return nil
end

-- Return the state that decides whether a piece is accepted: 'open' if it is.
local function admission(q, w, r)
  local state = S.state(q, w, r[3], r[4])
  if r[8] == 0 then return (state == 'open' and not S.has_driver(w, r[11])) and 'aborted' or state end
  if state == 'prepared' then return 'open' end -- by a driver that died, or has not decided yet
  if (state == 'absent' or state == 'aborted') and r[6] == 0 then
    S.begin(q, w, r[2], r[3], r[7], r[10])
    return 'open'
  end
  return state
end

G.export('write_stage', {}, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local w, attempt, seq, ttl = S.write(q, r[1]), r[5], r[6], r[7]
  local state = admission(q, w, r)
  if state ~= 'open' then return cmsgpack.pack({ state, '' }) end
  local list = S.list(w, attempt)
  local length = redis.call('LLEN', list)
  if length == seq + 1 then return cmsgpack.pack({ 'open', '' }) end
  if length ~= seq then return cmsgpack.pack({ 'lost', '' }) end
  local id = r[9] == 1 and existing_job(q, args[2])
  if id then return cmsgpack.pack({ 'duplicate', id }) end
  redis.call('RPUSH', list, args[2])
  redis.call('PEXPIRE', list, ttl)
  if seq == 0 then redis.call('SADD', w.tried, attempt) end
  S.touch(q, w)
  S.extend(w, ttl)
  return cmsgpack.pack({ 'open', '' })
end)
