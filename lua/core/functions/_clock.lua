-- Repair due times after the server's clock was set back: what was stored while it was ahead would stand still for as long
-- (docs/learn/guarantees.md, "The server's clock"). If `clockSeen` of P:meta is in the future (G.note_clock), exchanges and
-- heartbeats look at the times of the queue, BATCH each, and bring those forward that are further away than their own
-- interval. `clockCursor`: <clockSeen>|<number of the set>|<cursor>. `clockStep`: <ms>|<clockSeen> of the last step
-- (G.is_expired).

local SCAN, PENDING = G.rows.scan, G.rows.pending_entry
local BATCH, ONCE_MAX = 200, 1000

-- For each kind, the latest time that a member can have now; `now` if its own interval is not stored.

-- A job that has run waits since then, any other for its `delay`; `run_at` is a time that stays.
local function of_job(q, id, at, now)
  local key = q.J .. id
  local state, delay, ended, not_before = unpack(G.pcall('HMGET', key, 'state', 'delay', 'processedOn', 'notBefore'))
  ended = G.count_of(ended)
  if state ~= 'delayed' or ended > at then return now end
  if ended <= now and ended > 0 then return at end
  if ended > 0 then redis.call('HSET', key, 'processedOn', G.int(now)) end
  return math.max(now + (ended > 0 and at - ended or G.duration(delay)), G.clamped_time(not_before))
end

local function of_suspended(q, id, _, now)
  return now + G.duration(redis.call('HGET', q.J .. id, 'suspendTimeout'))
end

-- The key of a registration lasts longer, too.
local function of_worker(q, consumer, _, now, back)
  local key = q.P .. 'w:' .. consumer
  local ttl = redis.call('PTTL', key)
  if ttl > back then redis.call('PEXPIRE', key, G.int(ttl - back)) end
  return now
end

-- The client knows the intervals of schedulers: they are due at once.
local SETS = { 'scheduled', 'fair_delayed', 'delayed_own', 'ratelimited', 'fair_blocked', 'suspended', 'leases',
  'failure_retries', 'list_popped', 'waiting_children', 'schedulers_due', 'workers', 'completed', 'failed' }
local LATEST = { scheduled = of_job, fair_delayed = of_job, delayed_own = of_job, suspended = of_suspended, workers = of_worker,
  leases = function(...) return G.leases.latest(...) end }

-- Repair the members of a page. Only scores of `scheduled` have a priority; others above the times are states.
local function repair(q, set, found, now, back)
  local key, latest_of = q[set], LATEST[set]
  for i = 1, #found, 2 do
    local band, at = G.band_of(found[i + 1])
    if at and at > now and (band == 0 or set == 'scheduled') then
      local latest = latest_of and latest_of(q, found[i], at, now, back) or now
      if at > latest then
        at = set == 'schedulers_due' and now or math.max(0, math.min(latest, at - back))
        redis.call('ZADD', key, G.score(band * G.BAND + at), found[i])
      end
    end
  end
end

-- Once per step: the ends of temporary limits and of holds of fair keys, and the locks of entries read before.
local function step_back(q, now, back)
  redis.call('HSET', q.meta, 'clockStep', G.int(now) .. '|' .. G.int(now + back))
  local t = G.limit_ttl.read(redis.call('HGET', q.meta, 'temporaryLimits'))
  if t then
    if t.till > now then t.till = t.till - back end
    if t.rate_till > now then t.rate_till = t.rate_till - back end
    G.limit_ttl.write(q, t)
  end
  local state = G.pcall('HSCAN', q.fair_state, 0, 'COUNT', ONCE_MAX)[SCAN.found]
  for i = 1, state and #state or 0, 2 do
    local till, is_hold = G.count_of(state[i + 1]), string.find(state[i], '^hold:')
    if is_hold and till > now then redis.call('HSET', q.fair_state, state[i], G.int(till - back)) end
  end
  for _, p in ipairs(G.pcall('XPENDING', q.stream, G.GROUP, '-', '+', ONCE_MAX)) do
    if p[PENDING.idle] == 0 then
      G.pcall('XCLAIM', q.stream, G.GROUP, p[PENDING.consumer], 0, p[PENDING.id], 'JUSTID')
    end
  end
  if redis.call('EXISTS', q.schedulers_due) == 1 then G.schedulers_changed(q) end
end

local function sweep(q, seen, now)
  local step, back, room = G.int(seen), seen - now, BATCH
  local number, cursor = G.match(redis.call('HGET', q.meta, 'clockCursor'), '^' .. step .. '|(%d+)|(.*)$')
  if not number then step_back(q, now, back) end
  for i = tonumber(number or 1), #SETS do
    local set = SETS[i]
    local low = set == 'scheduled' and '-inf' or '(' .. G.int(now)
    local ok, found = G.attempt(G.set_slice, q[set], cursor or '', room, low, '+inf')
    if not ok then found = {} end -- a foreign key
    G.attempt(repair, q, set, found, now, back)
    room, cursor = room - #found / 2, ''
    if room <= 0 then
      redis.call('HSET', q.meta, 'clockCursor', step .. '|' .. i .. '|' .. G.slice_end(found))
      q.sweeps = true
      return
    end
  end
  redis.call('HDEL', q.meta, 'clockCursor')
  redis.call('HSET', q.meta, 'clockSeen', G.int(now))
end

-- In calls that read no settings.
G.follow_clock = function(q, now)
  G.check_clock(q, redis.call('HGET', q.meta, 'clockSeen'), now)
  G.note_clock(q, now)
end

-- seen: the field `clockSeen`. Then q.sweeps is true if the next call has to continue.
G.check_clock = function(q, seen, now)
  q.clock_seen = G.count_of(seen)
  if q.clock_seen > now then sweep(q, q.clock_seen, now) end
end
