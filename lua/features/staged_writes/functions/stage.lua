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

local NEW_JOB = G.rows.new_job
local ADD = G.requests.add
local S = G.staging

G.export('write_open', {}, function(q, r)
  local w, state = S.read(q, r)
  -- An aborted write may be tried again under its own name.
  if r.create == 1 and (state == 'absent' or state == 'aborted') then
    S.begin(q, w, r.home, r.query, r.ttl, r.keep)
    state = 'open'
  end
  if state == 'open' and r.create == 1 then
    if r.driver ~= '' then S.add_driver(w, r.driver) end
    S.touch(q, w, r.ttl)
  elseif state == 'open' and not S.has_driver(w, r.driver) then
    return { state = 'aborted', ballot = '' }
  end
  if state == 'open' and r.queue ~= '' then
    if redis.call('SCARD', w.queues) >= S.QUEUES_MAX and redis.call('SISMEMBER', w.queues, r.queue) == 0 then
      return { state = 'full', ballot = '' }
    end
    redis.call('SADD', w.queues, r.queue)
    S.touch(q, w, r.ttl)
  end
  return { state = state, ballot = S.ballot(w) }
end)

local function existing_job(q, packed)
  for _, row in ipairs(cmsgpack.unpack(packed)[ADD.rows]) do
    local id = row[NEW_JOB.id]
    if id and id ~= '' and G.exists(q, id) then return id end
  end
  return nil
end

-- Return the state that decides whether a piece is accepted: 'open' if it is.
local function admission(q, w, r, state)
  if r.create == 0 then return (state == 'open' and not S.has_driver(w, r.driver)) and 'aborted' or state end
  if state == 'prepared' then return 'open' end -- by a driver that died, or has not decided yet
  if (state == 'absent' or state == 'aborted') and r.seq == 0 then
    S.begin(q, w, r.home, r.query, r.ttl, r.keep)
    return 'open'
  end
  return state
end

local function reply(state, id) return { state = state, id = id or '' } end

G.export('write_stage', {}, function(q, r)
  local w, state = S.read(q, r)
  local attempt, seq, ttl = r.attempt, r.seq, r.ttl
  state = admission(q, w, r, state)
  if state ~= 'open' then return reply(state) end
  local list = S.list(w, attempt)
  local length = redis.call('LLEN', list)
  if length > seq then return reply('open') end
  if length < seq then return reply('lost') end
  local id = r.unique == 1 and existing_job(q, r.jobs)
  if id then return reply('duplicate', id) end
  redis.call('RPUSH', list, r.jobs)
  redis.call('PEXPIRE', list, ttl)
  if seq == 0 then redis.call('SADD', w.tried, attempt) end
  S.touch(q, w, ttl)
  return reply('open')
end)
