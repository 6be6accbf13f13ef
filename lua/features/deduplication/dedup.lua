-- Deduplicate jobs: one entry per dedup id, `jobId:timestamp` of the job that was added last. `dedup-expiry` holds the
-- time at which an entry may be deleted. Each new entry deletes up to SWEEP_PER_ADD expired ones, and each round of
-- recovery up to SWEEP_MAX, so the hash holds the entries of the last hour, of longer times to live, and of jobs that have
-- not ended, whatever the number of ids. The record of a job that was staged behind an
-- active one names that one in `stagedBehind`: if it ends or is deleted before it has started, that one counts again.

local SWEEP_MAX, SWEEP_PER_ADD, RECHECK_MS = 1000, 2, 3600000
local NO_MORE = {}

local function existing_job(q, dedup_id)
  local found = redis.call('HGET', q.dedup, dedup_id)
  return G.match(found, '^(.*):(%d+)$')
end

-- States of a job that another one may replace. In other states before its end the job has started.
local REPLACEABLE = {
  waiting = true, prioritized = true, delayed = true, ['group-waiting'] = true, ['waiting-children'] = true,
}
local STARTED = { active = true, suspended = true }

-- Return whether the job does not count any more: it has ended, or started.
local function is_over(h, until_started)
  if not h.state or G.TERMINAL[h.state] then return true end
  return until_started and (STARTED[h.state] or G.given(h.processedOn) ~= nil)
end

-- Return the id and the fields of the job that counts for an entry of job `id`; nil if none does.
local function counting_job(q, id, until_started)
  local h = G.job_of(q, id)
  if not is_over(h, until_started) then return id, h end
  if h.state ~= 'failed' or G.given(h.processedOn) then return nil end
  local first = redis.call('HGET', q.J .. id, 'stagedBehind')
  if not first then return nil end
  h = G.job_of(q, first)
  if is_over(h, until_started) then return nil end
  return first, h
end

-- Return whether an entry made `at` has expired. The clock was set back if that is in the future: its time starts again.
local function has_expired(q, dedup_id, id, at, ttl, now)
  if ttl <= 0 then return false end
  at = tonumber(at)
  if at <= now or at > now + ttl then return G.window_is_over(at, ttl, now) end
  redis.call('HSET', q.dedup, dedup_id, id .. ':' .. G.int(now))
  return false
end

-- Return the option in the text of a job's options; nil if it has none.
local function option_of(text)
  if not text or not string.find(text, '"deduplication"', 1, true) then return nil end
  local option = G.json(text).deduplication
  return type(option) == 'table' and type(option.id) == 'string' and option or nil
end

-- Return the option in the text of the options of a job that must be the only one with its id until it ends, or nil. A
-- throttle does not depend on the states of jobs.
G.unique_option = function(text)
  local option = option_of(text)
  return option and option.mode ~= 'throttle' and option or nil
end

-- Called before the job is deleted: if it is staged, its entry is that of the job which it was staged behind.
G.return_dedup_id = function(q, id)
  local h = G.pick(q.J .. id, 'stagedBehind', 'opts')
  local option = h.stagedBehind and option_of(h.opts)
  if not option then return end
  local found, at = existing_job(q, option.id)
  if found == id then redis.call('HSET', q.dedup, option.id, h.stagedBehind .. ':' .. at) end
end

-- Take the dedup id again for a job that has ended and is requeued. Return the id of another job that counts for it, in
-- which case nothing was changed; nil if the job may be requeued.
G.take_dedup_id = function(q, id, opts, now)
  local option = G.unique_option(opts)
  if not option then return nil end
  local ttl = G.count_of(option.ttl)
  local found, at = existing_job(q, option.id)
  if found == id then return nil end
  if found and not has_expired(q, option.id, found, at, ttl, now) then
    local owner = counting_job(q, found, option['until'] == 'started')
    if owner and owner ~= id then return owner end
  end
  G.record_dedup(q, option.id, id, ttl, now)
  return nil
end

-- Return whether the job has been deleted. A job that a peer's worker has just read will be active.
local function delete_existing(q, id, h, quiet)
  if not REPLACEABLE[h.state] then return false end
  if h.state == 'waiting' then
    local place = G.waiting_place(q, id, h)
    if not place or place.held then return false end
  end
  local denied = G.missing_permission(q.meta) -- a deletion must not end half-way
  if denied then error(denied, 0) end
  G.remove_job(q, id, 'replaced by a newer job', quiet)
  return true
end

-- Replace the existing job, or stage the new one behind it: at most one job is staged behind a started one.
local function replace_or_stage(q, id, h, quiet)
  local first = redis.call('HGET', q.J .. id, 'stagedBehind')
  if not delete_existing(q, id, h, quiet) then return 'staged', id end
  if not first then return 'replaced' end
  G.dependencies.unregister(q, first, q.P .. id)
  local state = redis.call('HGET', q.J .. first, 'state')
  if not state or G.TERMINAL[state] then return 'replaced' end
  return 'staged', first
end

local function find_duplicate(q, dedup_id, mode, ttl, now, quiet, more)
  local id, at = existing_job(q, dedup_id)
  if not id then return nil end
  if mode == 'throttle' then
    if ttl > 0 and not has_expired(q, dedup_id, id, at, ttl, now) then return 'skipped', id end
    return nil
  end
  if mode ~= 'simple' and mode ~= 'debounce' then return nil end
  if has_expired(q, dedup_id, id, at, ttl, now) then return nil end
  local h
  id, h = counting_job(q, id, more.until_started)
  if not id then return nil end
  if more.replace then return replace_or_stage(q, id, h, quiet) end
  if mode == 'debounce' and (h.state == 'delayed' or h.state == 'prioritized') then
    G.remove_job(q, id, 'replaced by a newer job', quiet)
    return 'replaced'
  end
  return 'skipped', id
end

-- Start the time of the entry again.
local function extend(q, dedup_id, id, ttl, now)
  if ttl > 0 then G.record_dedup(q, dedup_id, id, ttl, now) end
  return 'skipped', id
end

-- Return nil = add; 'skipped' and the id of the existing job; 'replaced' = add, the existing job was deleted; 'staged'
-- and the id of the started job which the new one is to wait for. ttl: ms for which the last added job counts as a
-- duplicate; 0 = simple and debounce depend on the job only. more: absent, or {until_started, extend, replace}.
G.deduplicate = function(q, dedup_id, mode, ttl, now, quiet, more)
  more = more or NO_MORE
  local outcome, id = find_duplicate(q, dedup_id, mode, ttl, now, quiet, more)
  if outcome == 'skipped' and more.extend then return extend(q, dedup_id, id, ttl, now) end
  return outcome, id
end

-- Delete entries that have expired and whose job has ended, at most `most`.
local function delete_expired(q, now, most)
  local ids = redis.call('ZRANGEBYSCORE', q.dedup_expiry, '-inf', G.int(now), 'LIMIT', 0, most)
  for i = 1, #ids do
    local dedup_id = ids[i]
    local id = existing_job(q, dedup_id)
    local state = id and G.state_of(q, id)
    if state and not G.TERMINAL[state] then
      redis.call('ZADD', q.dedup_expiry, G.int(now + RECHECK_MS), dedup_id)
    else
      redis.call('HDEL', q.dedup, dedup_id)
      redis.call('ZREM', q.dedup_expiry, dedup_id)
    end
  end
end

G.record_dedup = function(q, dedup_id, id, ttl, now)
  redis.call('HSET', q.dedup, dedup_id, id .. ':' .. G.int(now))
  redis.call('ZADD', q.dedup_expiry, G.int(G.clamped_time(now + math.max(ttl, RECHECK_MS))), dedup_id)
  delete_expired(q, now, SWEEP_PER_ADD)
end

-- Once per round of recovery: for queues to which no such jobs are added any more.
G.sweep_dedup = function(q, now)
  G.repair_times(q.dedup_expiry, G.TIME_MAX, now)
  delete_expired(q, now, SWEEP_MAX)
end
