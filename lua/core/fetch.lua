-- Fetch jobs: check each record, reject jobs that must not run, activate the others with a new fencing token.

-- Fields read of a job that may be fetched.
local FIELDS = { 'state', 'fence', 'name', 'data', 'opts', 'timestamp', 'progress', 'stalledCount', 'expireAt', 'revoked',
  'groupKey', 'processedOn', 'priority', 'budgetKey', 'fairKey' }
local AT = G.positions(FIELDS)
local STATE, FENCE, NAME, DATA, OPTS, TIMESTAMP = AT.state, AT.fence, AT.name, AT.data, AT.opts, AT.timestamp
local PROGRESS, STALLED, EXPIRE_AT = AT.progress, AT.stalledCount, AT.expireAt
local REVOKED, GROUP_KEY, PROCESSED_ON = AT.revoked, AT.groupKey, AT.processedOn
local PRIORITY, BUDGET_KEY, FAIR_KEY = AT.priority, AT.budgetKey, AT.fairKey
-- The same, in queues that have used ranks, or record timelines.
local ALL_FIELDS, RANK, TIMELINE = {}, #FIELDS + 1, #FIELDS + 2
for at = 1, #FIELDS do ALL_FIELDS[at] = FIELDS[at] end
ALL_FIELDS[RANK], ALL_FIELDS[TIMELINE] = 'rank', 'timeline'

local M = G.groups
local STEPS = 9 -- in the fields that only a job that has run before can have

-- The order of the sources. Groups are fetched again after the stream, whose jobs may have freed slots, and fair keys after
-- the ranks below, whose jobs may have moved to the keys of their names.
local ORDER = { 'priority_list', 'priorities', 'lifo', 'groups', 'fair', 'stream', 'fair_rest', 'groups' }
local RANKED = { 'ranked_above', 'priority_list', 'priorities', 'lifo', 'groups', 'fair', 'stream', 'fair_rest', 'groups',
  'ranked_below', 'fair_rest' }
-- The same, if no list and no set other than those of fair keys has jobs.
local NO_PLACES, STREAM_ONLY = { 'groups', 'fair', 'stream', 'fair_rest', 'groups' }, { 'groups', 'stream', 'groups' }

local RUNNABLE = { waiting = true, prioritized = true, delayed = true }

-- The state of one fetch: fetched jobs, dropped jobs, entries to acknowledge. Fields that callers set are named here so
-- that the table need not grow.
G.fetching = function(_, now, consumer, quiet)
  return { call = redis.call, pcall = redis.pcall, now = now, now_text = G.time_text(now), consumer = consumer,
    quiet = quiet, jobs = {}, dropped = {},
    acked = {}, from_lists = {}, next_due = -1, bytes = 0, groups = {}, group_listed = {},
    settings = false, channel = false, lease = false, timeline = false }
end

local function ack(fetching, entry)
  if entry ~= '' then fetching.acked[#fetching.acked + 1] = entry end
end

-- Drop an entry: acknowledge it and report the reason to the worker.
G.drop = function(fetching, id, entry, reason)
  ack(fetching, entry)
  fetching.dropped[#fetching.dropped + 1] = G.new.dropped({ entry = entry, id = id or '', reason = reason })
end

-- Read these fields. A worker reads a rank that no priority has in place of the priority, after an r.
local function read_job(fetching, key)
  if not (fetching.timeline or fetching.ranked) then return G.pcall('HMGET', key, unpack(FIELDS)) end
  local h = G.pcall('HMGET', key, unpack(ALL_FIELDS))
  if h[RANK] then h[PRIORITY] = 'r' .. h[RANK] end
  return h
end

local function reject_unrunnable(q, fetching, id, entry, h)
  local state = h[STATE]
  local runnable = RUNNABLE[state] or (fetching.reattach and state == 'active')
    or (fetching.from_groups and state == 'group-waiting')
  if not runnable then
    G.drop(fetching, id, entry, 'state is ' .. state)
    return true
  end
  if not h[NAME] or not h[DATA] or not h[OPTS] then
    G.end_job(q, id, fetching.now, 'malformed job record: no name, data or opts', 'failed')
    G.drop(fetching, id, entry, 'malformed')
    return true
  end
  if h[REVOKED] == '1' then
    G.end_job(q, id, fetching.now, 'revoked', 'revoked')
    G.drop(fetching, id, entry, 'revoked')
    return true
  end
  if h[EXPIRE_AT] and G.is_expired(q, h[EXPIRE_AT], h[TIMESTAMP], fetching.now) then
    G.end_job(q, id, fetching.now, 'expired', 'expired', h[PROCESSED_ON])
    G.drop(fetching, id, entry, 'expired')
    return true
  end
  return false
end

-- Remember a group whose parked jobs can run. They are fetched in this call or pushed to the stream at
-- its end.
G.add_ready_group = function(fetching, name)
  if fetching.group_listed[name] then return end
  fetching.group_listed[name] = true
  fetching.groups[#fetching.groups + 1] = name
end

-- Check the limits of the job's group. Return true if the job may run; otherwise it is parked or has failed.
local function enter_group(q, fetching, id, entry, h)
  local job = G.pick(q.J .. id, 'orderingSeq', 'slot', 'cost', 'timestamp')
  job.state, job.groupKey, job.processedOn = h[STATE], h[GROUP_KEY], h[PROCESSED_ON] or nil
  local rejected, g = M.enter(q, id, job, fetching.now)
  if rejected then
    fetching.parked_by, fetching.parked = g, true
    ack(fetching, entry)
    return false
  end
  if g.maxConcurrency == 0 or g.active < g.maxConcurrency then G.add_ready_group(fetching, g.name) end
  return true
end

-- Without a stream entry nothing is pending for the job, so its record names the worker (write_active) and an event
-- reports its start. The first event of a call trims the stream.
local function track_list_job(q, fetching, id, h)
  local listed = fetching.from_lists
  listed[#listed + 1] = id
  if fetching.lease and not h[GROUP_KEY] then redis.call('HSET', q.J .. id, 'takenBy', fetching.consumer) end
  if fetching.quiet or fetching.tells_starts or h[FAIR_KEY] then return end
  if not fetching.trimmed then
    fetching.trimmed = true
    G.emit(q.events, 'active', id)
  else
    G.pcall('XADD', q.events, '*', 'event', 'active', 'jobId', id)
  end
end

-- Write that a job is active. beat: its `lastActive`. The variable arguments are further fields of its record.
G.write_active = function(fetching, key, fence, beat, ...)
  fetching.call('HSET', key, 'state', 'active', 'processedOn', fetching.now_text, 'lastActive', beat, 'fence', fence, ...)
end

local function write_activation(fetching, key, id, entry, fence, h, timeline)
  local now_text = fetching.now_text
  if fetching.lease then
    local lease, deadline = G.leases.start(fetching, id, entry, fence, h[OPTS])
    G.write_active(fetching, key, fence, deadline, 'lease', lease)
    if h[GROUP_KEY] then redis.call('HSET', key, 'slot', '1', 'takenBy', entry == '' and fetching.consumer or '') end
  elseif h[GROUP_KEY] then
    G.write_active(fetching, key, fence, now_text, 'slot', '1', 'takenBy', entry == '' and fetching.consumer or '')
  elseif entry == '' then
    G.write_active(fetching, key, fence, now_text, 'takenBy', fetching.consumer)
  elseif timeline then
    G.write_active(fetching, key, fence, now_text, 'timeline', timeline)
    return
  else
    G.write_active(fetching, key, fence, now_text)
  end
  if timeline then redis.call('HSET', key, 'timeline', timeline) end
end

-- Mark the job active and add it to the reply.
local function write_active(q, fetching, id, entry, h)
  local key = q.J .. id
  local fence = G.count_of(h[FENCE]) + 1
  write_activation(fetching, key, id, entry, fence, h,
    fetching.timeline and G.timeline(q, id, h[TIMELINE], 'active', fetching.now, fetching.consumer))
  if entry == '' then
    track_list_job(q, fetching, id, h)
    if h[FAIR_KEY] then G.fair.start(q, id, h[FAIR_KEY]) end
  end
  fetching.bytes = fetching.bytes + #h[DATA]
  local attempts, trace, earlier = '0', false, nil
  -- Fields that only a job that has run before can have.
  if h[FENCE] or h[PROCESSED_ON] or h[STALLED] then
    earlier = redis.call('HMGET', key, 'attemptsMade', 'stacktrace', 'signals', 'fallbackIndex', 'failedReason',
      'failedType', 'suspectLimit', 'ownKeys', 'steps', 'requeues')
    attempts, trace = unpack(earlier, 1, 2)
    if earlier[STEPS] then
      local bytes
      earlier[STEPS], bytes = G.steps.read(q, id, earlier[STEPS])
      fetching.bytes = fetching.bytes + bytes
    end
  end
  local job = G.fetched_job(id, entry, fence, h[NAME], h[DATA], h[OPTS], h[TIMESTAMP], attempts, h[PROGRESS], h[STALLED],
    h[PRIORITY], trace)
  if earlier then G.add_earlier_run(job, unpack(earlier, 3)) end
  fetching.jobs[#fetching.jobs + 1] = job
end

-- A peer that schedules without a function may leave a job in two places. It runs from one of them.
local function leave_other_place(q, fetching, id)
  if fetching.ranked then G.leave_scheduled(q, id) else redis.call('ZREM', q.scheduled, id) end
end

-- A peer put a job with a fair key into another place, which no limit of the key applies to: put it back.
local function return_to_key(q, fetching, id, entry, h)
  if not h[FAIR_KEY] or fetching.from_fair or fetching.from_suspects or h[STATE] == 'active' then return false end
  G.fair.put_back(q, id, h[FAIR_KEY], h[PRIORITY])
  ack(fetching, entry)
  return true
end

-- The same for a job whose name has limits, if it has no key or group of its own.
local function move_to_name(q, fetching, id, entry, h)
  if h[FAIR_KEY] or h[GROUP_KEY] or fetching.from_suspects or h[STATE] == 'active' then return false end
  if not G.fair.move_to_name(q, id, h[NAME], h[PRIORITY]) then return false end
  ack(fetching, entry)
  return true
end

-- Activate the job found under `entry` (a stream entry id, or '' for a list). Return true if it was fetched.
G.activate = function(q, fetching, id, entry)
  local key = q.J .. id
  local h = read_job(fetching, key)
  if h.err then
    G.drop(fetching, id, entry, 'the job key is not a hash')
    return false
  end
  if not h[STATE] then
    G.drop(fetching, id, entry, 'the job is gone')
    return false
  end
  if reject_unrunnable(q, fetching, id, entry, h) then return false end
  if return_to_key(q, fetching, id, entry, h) then return false end
  if fetching.limits_names and move_to_name(q, fetching, id, entry, h) then return false end
  if h[GROUP_KEY] and not (fetching.reattach and h[STATE] == 'active') and not enter_group(q, fetching, id, entry, h) then
    return false
  end
  if fetching.reattach then
    -- A job of this worker, fetched by a call whose reply was lost: its entry is already pending, its attempt never
    -- started.
    redis.call('HDEL', q.stall_watch, id)
  end
  if entry ~= '' and h[STATE] ~= 'waiting' then leave_other_place(q, fetching, id) end
  write_active(q, fetching, id, entry, h)
  if h[BUDGET_KEY] then G.budgets.add_decision(q, fetching, id, h[BUDGET_KEY]) end
  return true
end

-- Fetch up to `want` jobs from the sources in their order. A source activates up to `free` jobs and returns whether it
-- is empty; it rejects at most G.REJECTIONS_MAX jobs per call. Return true if no job is ready any more.
G.fetch = function(q, fetching, want)
  local exhausted, failure = true, nil
  fetching.limits_names = rawget(q, 'limits_names')
  local blocked = not fetching.no_places and G.suspects.fetch(q, fetching, want)
  local order = fetching.ranked and RANKED or ORDER
  if fetching.no_places then order = rawget(q, 'has_fair') and NO_PLACES or STREAM_ONLY end
  for i = 1, blocked and 0 or #order do
    local free = want - #fetching.jobs
    if free <= 0 then
      exhausted = false
      break
    end
    local ok, empty = pcall(G.sources[order[i]], q, fetching, free)
    if not ok then
      exhausted, failure = false, empty
      break
    end
    if not empty then exhausted = false end
  end
  G.track_list_jobs(q, fetching.from_lists, fetching.now_text, fetching.settings)
  G.promote_groups(q, fetching)
  G.ack_entries(q, fetching.acked)
  -- If a source cannot be read the call fails, unless jobs were already fetched: those are returned.
  if failure and #fetching.jobs == 0 then error(failure, 0) end
  return exhausted
end
