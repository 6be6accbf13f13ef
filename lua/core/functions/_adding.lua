-- Write a new job that has a delay, priority, group or parent besides name, data and id. Used by
-- core/functions/add.lua and features/flows/functions/flow_add.lua, which document the rows.
local A = G.adding

local JOB, ORDERING = G.rows.new_job, G.rows.ordering
local NAME, DATA, OPTS, DELAY, ATTEMPTS = JOB.name, JOB.data, JOB.opts, JOB.delay, JOB.attempts
local PRIORITY, LIFO, TTL, RUN_AT = JOB.priority, JOB.lifo, JOB.ttl, JOB.run_at
local FAIR, RANK, GROUPED = JOB.fair, JOB.rank, JOB.ordering
local GROUP, CONCURRENCY, RATE_MAX, CAPACITY, COST = ORDERING.group, ORDERING.concurrency, ORDERING.rate_max,
  ORDERING.tb_capacity, ORDERING.cost

local function set_limits(key, o, now)
  if o[RATE_MAX] > 0 then G.groups.set_rate(key, o[RATE_MAX], o[ORDERING.rate_duration]) end
  if o[CAPACITY] > 0 then G.groups.set_bucket(key, o[CAPACITY], o[ORDERING.tb_rate], now) end
end

-- Set the concurrency of a group, and the first sequence if it has none. A job without a concurrency leaves that of the
-- group unchanged, unlike in a Node peer.
local function set_up_group(q, key, group, concurrency, turns)
  local width, next_seq
  if not turns or turns.last[group] ~= 0 or turns.width[group] then
    width, next_seq = unpack(redis.call('HMGET', key, 'maxConcurrency', 'nextSeq'))
  end
  if not width and not next_seq then
    redis.call('HSET', key, 'maxConcurrency', concurrency > 1 and G.int(concurrency) or '1', 'nextSeq', '1')
  else
    if concurrency > 0 or not width then G.groups.set_concurrency(q, group, math.max(1, concurrency)) end
    if not next_seq then redis.call('HSET', key, 'nextSeq', '1') end
  end
  if turns then turns.width[group] = concurrency end
  G.groups.uncache(q, group)
end

-- Set up the group and return the job's sequence. later: the sequence is issued when the job's children have ended.
local function join_group(q, now, o, later)
  local M, group, concurrency, turns = G.groups, o[GROUP], o[CONCURRENCY] or 0, rawget(q, 'turns')
  local last, width = turns and turns.last[group], turns and turns.width[group]
  if not last or last == 0 and not width or concurrency > 0 and concurrency ~= width then
    set_up_group(q, q.P .. 'group:' .. group, group, concurrency, turns)
  end
  if #o > 1 and (o[RATE_MAX] > 0 or o[CAPACITY] > 0) then
    set_limits(q.P .. 'group:' .. group, o, now)
    M.uncache(q, group)
  end
  if later then return nil end
  if not last then return M.next_seq(q, group) end
  last = turns.last[group] + 1
  turns.last[group] = last
  return last
end

-- Count the sequences of the groups of many rows in this call.
A.count_turns = function(q, rows)
  local names, last = {}, {}
  for i = 1, #rows do
    local o = rows[i][GROUPED]
    local group = o and o[GROUP]
    if group and last[group] == nil then
      last[group], names[#names + 1] = false, group
    end
  end
  if #names > 0 and not rawget(q, 'turns') then G.groups.read_turns(q, names, last) end
end

-- Return whether a job of this ordering costs more than the group's bucket holds. An earlier job or set_group_limits may
-- have set the bucket.
A.too_costly = function(q, o)
  local cost, capacity = o[COST] or 0, o[CAPACITY] or 0
  if cost <= 0 and capacity <= 0 then return false end
  if capacity <= 0 then capacity = G.num(redis.call('HGET', q.P .. 'group:' .. o[GROUP], 'tbCapacity')) end
  return capacity > 0 and (cost > 0 and cost or 1000) > capacity
end

-- Return the due time (epoch ms, nil = now) and the delay for the record.
local function due_of(row, now)
  local delay, run_at = row[DELAY] or 0, row[RUN_AT]
  if run_at and run_at > now then return run_at, run_at - now end
  if not run_at and delay > 0 then return now + delay, delay end
  return nil, delay
end

-- Return the due time of a job of a bulk. Jobs with one due time stay in their order (core/ties.lua): TIES_MAX of them have
-- that time, as many the next millisecond, and so on, and so has an id that would be sorted before the one before it, for
-- the first second. `lastTie` of P:meta is where the bulk before has come to, <due>|<time>|<jobs>|<id>: one that is due in
-- between continues there, as the further calls of one add_bulk do.
local TIES_MAX, MOVED_MAX = 1000, 1000

local function tie_before(q, due)
  local text = rawget(q, 'fair_adding') and redis.call('HGET', q.meta, 'lastTie') or ''
  local first, at, count, id = string.match(text, '^(%d+)|(%d+)|(%d+)|(.*)$')
  first, at = tonumber(first), tonumber(at)
  if first and first <= due and due <= at then return { due = due, at = at, count = tonumber(count), id = id } end
  return {}
end

A.spread = function(q, due, id)
  local tie = rawget(q, 'tie')
  if not tie then
    tie = tie_before(q, due)
    rawset(q, 'tie', tie)
  end
  if tie.due ~= due then
    tie.due, tie.at, tie.count, tie.id = due, due, 1, id
    return due
  end
  if tie.count == TIES_MAX or tie.at - due < MOVED_MAX and not G.is_before(tie.id, id) then
    tie.at, tie.count = tie.at + 1, 0
  end
  tie.count, tie.id = tie.count + 1, id
  return tie.at
end

A.write_tie = function(q)
  local tie = rawget(q, 'tie')
  if tie then
    redis.call('HSET', q.meta, 'lastTie', G.int(tie.due) .. '|' .. G.int(tie.at) .. '|' .. tie.count .. '|' .. tie.id)
  end
end

-- Return the table that all rows of a call share: a new one for each costs as much as a command. It is a job for G.place,
-- `now` as text, the start of entries made now, and the fields that only some jobs have.
local function shared(q, now)
  local job = rawget(q, 'placed')
  if not job then
    job = { more = {} }
    rawset(q, 'placed', job)
  end
  if job.now ~= now then
    job.now, job.now_text = now, G.time_text(now)
    job.entry_start = job.now_text .. '-'
  end
  return job
end

local function place(q, now, id, row, due, inner, job)
  if inner then
    G.flows.wait(q, id, now)
    return 'waiting-children', ''
  end
  local priority, lifo, rank, fair = row[PRIORITY] or 0, row[LIFO] == 1, row[RANK], row[FAIR] or nil
  if not (due or lifo or rank or fair) and priority == 0 then return 'waiting', G.push_stream(q, id, row[NAME]) end
  job.id, job.name, job.priority, job.lifo, job.rank, job.fair = id, row[NAME], priority, lifo, rank, fair
  job.due = due and A.spread(q, due, id)
  return G.place(q, now, job)
end

-- Add the fields of a job with an ordering group. n: number of entries; return it.
local function put_group(fields, n, q, now, o, inner)
  fields[n + 1], fields[n + 2], n = 'groupKey', o[GROUP], n + 2
  local seq = join_group(q, now, o, inner)
  if seq then fields[n + 1], fields[n + 2], n = 'orderingSeq', seq, n + 2 end
  if o[COST] and o[COST] > 0 then fields[n + 1], fields[n + 2], n = 'cost', G.text(o[COST]), n + 2 end
  return n
end

-- Add the fields that only some jobs have.
local function put_more(fields, n, q, now, row, inner)
  local o, ttl, run_at = row[GROUPED], row[TTL], row[RUN_AT]
  if row[LIFO] == 1 then fields[n + 1], fields[n + 2], n = 'lifo', '1', n + 2 end
  if row[RANK] then fields[n + 1], fields[n + 2], n = 'rank', G.int(row[RANK]), n + 2 end
  if ttl and ttl > 0 then
    G.note_clock(q, now)
    fields[n + 1], fields[n + 2], n = 'expireAt', now + ttl, n + 2
  end
  if run_at and run_at > 0 then fields[n + 1], fields[n + 2], n = 'notBefore', run_at, n + 2 end
  if row[FAIR] then fields[n + 1], fields[n + 2], n = 'fairKey', row[FAIR], n + 2 end
  return o and put_group(fields, n, q, now, o, inner) or n
end

-- extra: further fields of the record, flat. inner: the job waits for its children first.
A.full = function(q, now, quiet, id, row, extra, inner)
  local due, delay = due_of(row, now)
  local job = shared(q, now)
  local state, entry = place(q, now, id, row, due, inner, job)
  local more, n = job.more, 0
  -- An entry made in the millisecond of its job is found by the timestamp; any other entry id is stored.
  if entry ~= '' and string.find(entry, job.entry_start, 1, true) ~= 1 then
    more[n + 1], more[n + 2], n = 'eid', entry, n + 2
  end
  n = put_more(more, n, q, now, row, inner)
  for i = 1, extra and #extra or 0 do more[n + i] = extra[i] end
  n = n + (extra and #extra or 0)
  local timeline = rawget(q, 'timeline') ~= false and G.new_timeline(q, id, state)
  if timeline then more[n + 1], more[n + 2], n = 'timeline', timeline, n + 2 end
  G.set(q, id, 'id', id, 'name', row[NAME], 'data', row[DATA], 'opts', row[OPTS],
    'timestamp', job.now_text, 'attemptsMade', '0', 'delay', delay, 'priority', row[PRIORITY] or 0,
    'maxAttempts', row[ATTEMPTS] or 0, 'state', state, unpack(more, 1, n))
  if quiet then return end
  -- The first event of a call trims the stream.
  if rawget(q, 'events_trimmed') then
    G.raise_denied(redis.pcall('XADD', q.events, '*', 'event', 'added', 'jobId', id, 'name', row[NAME]))
  else
    rawset(q, 'events_trimmed', true)
    G.emit(q.events, 'added', id, 'name', row[NAME])
  end
end
