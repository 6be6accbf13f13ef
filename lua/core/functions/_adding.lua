-- Write a new job that has a delay, priority, group or parent besides name, data and id. Used by
-- core/functions/add.lua and features/flows/functions/flow_add.lua, which document the rows.
local A = G.adding

local JOB, ORDERING = G.rows.new_job, G.rows.ordering
local NAME, DATA, OPTS, DELAY, ATTEMPTS = JOB.name, JOB.data, JOB.opts, JOB.delay, JOB.attempts
local PRIORITY, LIFO, TTL, RUN_AT = JOB.priority, JOB.lifo, JOB.ttl, JOB.run_at
local FAIR = JOB.fair

-- Return the settings of the job's group, as features/ordering_groups/group_setup.lua expects them; nil if it has
-- none.
A.group_of = function(row, now_text)
  local o = row[JOB.ordering]
  if not o then return nil end
  return { group = o[ORDERING.group], concurrency = o[ORDERING.concurrency], rate_max = o[ORDERING.rate_max],
    rate_duration = o[ORDERING.rate_duration], tb_capacity = o[ORDERING.tb_capacity], tb_rate = o[ORDERING.tb_rate],
    cost = o[ORDERING.cost], timestamp_text = now_text }
end

-- Set up the group and return the job's sequence. A job without a limit leaves the group's limit unchanged, unlike in
-- a Node peer. later: the sequence is issued when the job's children have ended.
local function join_group(q, s, later)
  local M = G.groups
  local key = q.P .. 'group:' .. s.group
  if s.concurrency > 0 or redis.call('HEXISTS', key, 'maxConcurrency') == 0 then
    M.set_concurrency(q, s.group, math.max(1, s.concurrency))
  end
  redis.call('HSETNX', key, 'nextSeq', '1')
  if s.rate_max > 0 then M.set_rate(key, s) end
  if s.tb_capacity > 0 then M.set_bucket(key, s) end
  M.uncache(q, s.group)
  return not later and M.next_seq(q, s.group) or nil
end

-- Return whether the job costs more than the group's bucket holds. An earlier job or set_group_limits may have set
-- the bucket.
A.too_costly = function(q, s)
  if s.cost <= 0 and s.tb_capacity <= 0 then return false end
  local capacity = s.tb_capacity
  if capacity <= 0 then capacity = G.num(redis.call('HGET', q.P .. 'group:' .. s.group, 'tbCapacity') or '') end
  return capacity > 0 and (s.cost > 0 and s.cost or 1000) > capacity
end

-- Return the due time (epoch ms, nil = now) and the delay for the record.
local function due_of(row, now)
  local delay, run_at = row[DELAY] or 0, row[RUN_AT]
  if run_at and run_at > now then return run_at, run_at - now end
  if not run_at and delay > 0 then return now + delay, delay end
  return nil, delay
end

local function place(q, now, id, row, due, inner)
  if inner then
    G.flows.wait(q, id, now)
    return 'waiting-children', ''
  end
  return G.place(q, now, {
    id = id, name = row[NAME], priority = row[PRIORITY] or 0, lifo = row[LIFO] == 1, due = due, rank = row[JOB.rank],
    fair = row[FAIR] or nil,
  })
end

-- Return the fields that only some jobs have, as a flat list.
local function more_fields(q, now, row, group, inner)
  local more = {}
  local function put(field, value) more[#more + 1], more[#more + 2] = field, value end
  if row[LIFO] == 1 then put('lifo', '1') end
  if row[JOB.rank] then put('rank', G.int(row[JOB.rank])) end
  if (row[TTL] or 0) > 0 then put('expireAt', G.int(now + row[TTL])) end
  if inner and row[RUN_AT] then put('notBefore', G.int(row[RUN_AT])) end
  if row[FAIR] then put('fairKey', row[FAIR]) end
  if not group then return more end
  put('groupKey', group.group)
  local seq = join_group(q, group, inner)
  if seq then put('orderingSeq', G.int(seq)) end
  if group.cost > 0 then put('cost', G.text(group.cost)) end
  return more
end

-- extra: further fields of the record, flat. inner: the job waits for its children first.
A.full = function(q, now, quiet, id, row, group, extra, inner)
  local due, delay = due_of(row, now)
  local state, entry = place(q, now, id, row, due, inner)
  local fields = {
    'id', id, 'name', row[NAME], 'data', row[DATA], 'opts', row[OPTS], 'timestamp', G.int(now),
    'attemptsMade', '0', 'delay', G.int(delay), 'priority', G.int(row[PRIORITY] or 0),
    'maxAttempts', G.int(row[ATTEMPTS] or 0), 'state', state,
  }
  if entry ~= '' then fields[#fields + 1], fields[#fields + 2] = 'eid', entry end
  for _, part in ipairs(more_fields(q, now, row, group, inner)) do fields[#fields + 1] = part end
  for _, part in ipairs(extra or {}) do fields[#fields + 1] = part end
  local timeline = G.new_timeline(q, id, state)
  if timeline then fields[#fields + 1], fields[#fields + 2] = 'timeline', timeline end
  redis.call('HSET', q.J .. id, unpack(fields))
  if quiet then return end
  -- The first event of a call trims the stream.
  if rawget(q, 'events_trimmed') then
    G.raise_denied(redis.pcall('XADD', q.events, '*', 'event', 'added', 'jobId', id, 'name', row[NAME]))
  else
    rawset(q, 'events_trimmed', true)
    G.emit(q.events, 'added', id, 'name', row[NAME])
  end
end
