-- Write a new job that has a delay, priority, group or parent besides name, data and id. Used by
-- core/functions/add.lua and features/flows/functions/flow_add.lua, which document the rows.
local A = G.adding

local JOB, ORDERING = G.rows.new_job, G.rows.ordering
local NAME, DATA, OPTS, DELAY, ATTEMPTS = JOB.name, JOB.data, JOB.opts, JOB.delay, JOB.attempts
local PRIORITY, LIFO, TTL, RUN_AT = JOB.priority, JOB.lifo, JOB.ttl, JOB.run_at
local FAIR, RANK, GROUPED = JOB.fair, JOB.rank, JOB.ordering
local GROUP, CONCURRENCY, RATE_MAX, CAPACITY, COST = ORDERING.group, ORDERING.concurrency, ORDERING.rate_max,
  ORDERING.tb_capacity, ORDERING.cost

local function set_limits(q, o, now)
  local key = q.P .. 'group:' .. o[GROUP]
  if o[RATE_MAX] > 0 then G.groups.set_rate(key, o[RATE_MAX], o[ORDERING.rate_duration]) end
  if o[CAPACITY] > 0 then G.groups.set_bucket(key, o[CAPACITY], o[ORDERING.tb_rate], now) end
  G.groups.uncache(q, o[GROUP])
end

-- Set the concurrency of a group, and the first sequence if it has none. A job without a concurrency leaves that of the
-- group unchanged, unlike in a Node peer. is_new: the group has no record.
local function set_up_group(q, group, concurrency, is_new)
  local key, width, next_seq = q.P .. 'group:' .. group, nil, nil
  if not is_new then width, next_seq = unpack(redis.call('HMGET', key, 'maxConcurrency', 'nextSeq')) end
  if not width and not next_seq then
    redis.call('HSET', key, 'maxConcurrency', concurrency > 1 and G.int(concurrency) or '1', 'nextSeq', '1')
  else
    if concurrency > 0 or not width then G.groups.set_concurrency(q, group, math.max(1, concurrency)) end
    if not next_seq then redis.call('HSET', key, 'nextSeq', '1') end
  end
  G.groups.uncache(q, group)
end

-- Set up the group and return the job's sequence. turns: what G.groups.read_turns has read, nil = nothing. later: the
-- sequence is issued when the job's children have ended.
local function join_group(q, now, o, turns, later)
  local group, concurrency = o[GROUP], o[CONCURRENCY] or 0
  local last, width = turns and turns.last[group], turns and turns.width[group]
  local is_new = last == 0 and not width
  if is_new or not last or concurrency > 0 and concurrency ~= width then
    set_up_group(q, group, concurrency, is_new)
    if turns and (later or concurrency > 0) then turns.width[group] = concurrency end
  end
  if #o > 1 then set_limits(q, o, now) end
  if later then return nil end
  if not last then return G.groups.next_seq(q, group) end
  turns.last[group] = last + 1
  return last + 1
end

-- Count the sequences of the groups of many rows in this call. Return G.groups.read_turns, nil without groups.
A.count_turns = function(q, rows)
  local names, last = {}, {}
  for i = 1, #rows do
    local o = rows[i][GROUPED]
    local group = o and o[GROUP]
    if group and last[group] == nil then
      last[group], names[#names + 1] = false, group
    end
  end
  return #names > 0 and G.groups.read_turns(q, names, last) or nil
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

local function tie_before(q, due, job)
  local text = job.most and redis.call('HGET', q.meta, 'lastTie') or ''
  local first, at, count, id = string.match(text, '^(%d+)|(%d+)|(%d+)|(.*)$')
  first, at = tonumber(first), tonumber(at)
  if first and first <= due and due <= at then return { due = due, at = at, count = tonumber(count), id = id } end
  return {}
end

local function spread(q, due, id, job)
  local tie = job.tie
  if not tie then
    tie = tie_before(q, due, job)
    job.tie = tie
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

A.write_tie = function(q, tie)
  redis.call('HSET', q.meta, 'lastTie', G.int(tie.due) .. '|' .. G.int(tie.at) .. '|' .. tie.count .. '|' .. tie.id)
end

-- Return the table that all rows of a call share: a new one for each costs as much as a command, and so does a look at
-- the queue's settings. It is a job for G.place, `now` as text, and, as a list, the fields that only some jobs have; of
-- an add of many jobs, what is counted or written for all (features/fair_keys/fair.lua).
A.shared = function(q, now)
  local job = rawget(q, 'adding')
  if not job then
    job = { rings = rawget(q, 'channels') ~= false, timed = rawget(q, 'timeline') ~= false }
    q.adding = job
  end
  if job.now ~= now then job.now, job.now_text, job.keeps_entries = now, G.time_text(now), nil end
  return job
end

-- An entry made in the millisecond of its job is found by the timestamp; any other entry id is stored. All entries of a
-- call are made at one time, unless the clock was set back: then none is made now.
local function is_kept(job, entry)
  if job.keeps_entries == nil then job.keeps_entries = string.find(entry, job.now_text .. '-', 1, true) ~= 1 end
  return job.keeps_entries
end

-- Put the job of a row into its place. Return its state, and its stream entry or ''.
local function place(q, id, row, due, job, inner)
  if inner then
    G.flows.wait(q, id, job.now)
    return 'waiting-children', ''
  end
  local priority, lifo, rank, fair = row[PRIORITY] or 0, row[LIFO] == 1, row[RANK] or false, row[FAIR] or false
  if due or fair or priority ~= 0 or lifo or rank then
    job.id, job.name, job.priority, job.lifo, job.rank, job.fair = id, row[NAME], priority, lifo, rank, fair
    job.due = due and spread(q, due, id, job) or false -- a field that is nil is made again for each row
    return G.place(q, job.now, job)
  end
  local entry = redis.call('XADD', q.stream, '*', 'jobId', id, 'name', row[NAME])
  if job.rings then G.ring(q) end
  return 'waiting', entry
end

-- Add the fields of a job with an ordering group to what the rows share. n: number of entries; return it.
local function put_group(fields, n, q, o, inner)
  local seq = join_group(q, fields.now, o, fields.turns, inner)
  fields[n + 1], fields[n + 2], n = 'groupKey', o[GROUP], n + 2
  if seq then fields[n + 1], fields[n + 2], n = 'orderingSeq', seq, n + 2 end
  if o[COST] and o[COST] > 0 then fields[n + 1], fields[n + 2], n = 'cost', G.text(o[COST]), n + 2 end
  return n
end

-- Add the fields that only some jobs have.
local function put_more(fields, n, q, row, inner)
  local o, ttl, run_at = row[GROUPED], row[TTL], row[RUN_AT]
  if row[LIFO] == 1 then fields[n + 1], fields[n + 2], n = 'lifo', '1', n + 2 end
  if row[RANK] then fields[n + 1], fields[n + 2], n = 'rank', G.int(row[RANK]), n + 2 end
  if ttl and ttl > 0 then
    G.note_clock(q, fields.now)
    fields[n + 1], fields[n + 2], n = 'expireAt', fields.now + ttl, n + 2
  end
  if run_at and run_at > 0 then fields[n + 1], fields[n + 2], n = 'notBefore', run_at, n + 2 end
  if row[FAIR] then fields[n + 1], fields[n + 2], n = 'fairKey', row[FAIR], n + 2 end
  return o and put_group(fields, n, q, o, inner) or n
end

A.tell = function(q, id, name, trims)
  if trims then
    G.emit(q.events, 'added', id, 'name', name)
  else
    G.raise_denied(redis.pcall('XADD', q.events, '*', 'event', 'added', 'jobId', id, 'name', name))
  end
end

-- extra: further fields of the record, flat. inner: the job waits for its children first.
A.full = function(q, now, quiet, id, row, extra, inner)
  local job, due, delay = A.shared(q, now), due_of(row, now)
  local state, entry = place(q, id, row, due, job, inner)
  local n = 0
  if entry ~= '' and is_kept(job, entry) then job[n + 1], job[n + 2], n = 'eid', entry, n + 2 end
  n = put_more(job, n, q, row, inner)
  for i = 1, extra and #extra or 0 do job[n + 1], n = extra[i], n + 1 end
  local timeline = job.timed and G.new_timeline(q, id, state)
  if timeline then job[n + 1], job[n + 2], n = 'timeline', timeline, n + 2 end
  redis.call('HSET', q.J .. id, 'id', id, 'name', row[NAME], 'data', row[DATA], 'opts', row[OPTS],
    'timestamp', job.now_text, 'attemptsMade', '0', 'delay', delay, 'priority', row[PRIORITY] or 0,
    'maxAttempts', row[ATTEMPTS] or 0, 'state', state, unpack(job, 1, n))
  if quiet then return end
  -- The first event of a call trims the stream.
  A.tell(q, id, row[NAME], not job.trimmed)
  job.trimmed = true
end
