-- Count the jobs of a batch, and add its callbacks. A job of a batch has the field `jobBatch` (`P` and id of the batch)
-- and the field `parentIds`, so that every call that ends, requeues or removes it calls F.child_ended, which reports it
-- here: in the same call if both are in one queue, otherwise through the outbox, as the result of a child whose parent
-- is `batch:<id>`. `batch:<id>` holds counts, times and callbacks, `batch-jobs:<id>` the state of each job: 'p' it has
-- not ended, 'c' completed, 'f' failed. A report that comes twice changes nothing.
local F, B = G.flows, G.batches

B.FEATURE = 'job-batches:0.2.0' -- a build without it does not report the end of a job to its batch
B.PARENT = 'batch:' -- job ids contain no colon
local JOINED = G.rows.joined_batch

local DAY_MS = 86400000
local KEEP_FAILED_MS = 30 * DAY_MS
local OPEN, COMPLETED, FAILED = 'p', 'c', 'f'
local NAMES = { [OPEN] = 'pending', [COMPLETED] = 'completed', [FAILED] = 'failed' }
local COUNTS = { 'pending', 'completed', 'failed', 'removed' }
local CALLBACKS = { complete = 'onComplete', success = 'onSuccess', failure = 'onFailure' }

B.key = function(q, id) return q.P .. 'batch:' .. id end
B.jobs_key = function(q, id) return q.P .. 'batch-jobs:' .. id end

-- Return counts and times of the batch, nil if it does not exist.
B.read = function(q, id)
  local h = G.pick(B.key(q, id), 'pending', 'completed', 'failed', 'removed', 'closed', 'completeAt', 'successAt',
    'failureAt', 'keep', 'stem')
  if not h.pending then return nil end
  for _, name in ipairs(COUNTS) do h[name] = G.count_of(h[name]) end
  h.was_finished, h.stem = B.is_finished(h), h.stem or id
  return h
end

B.is_finished = function(h) return h.closed ~= nil and h.pending <= 0 end

-- Add a callback of the batch, if it has it. Its id is derived from the batch: a repeated add is a duplicate. It is added
-- beyond the maximum backlog of its fair key, since nobody would add it later.
local function add_callback(q, id, event)
  local packed, quiet, stem = unpack(redis.call('HMGET', B.key(q, id), CALLBACKS[event], 'quiet', 'stem'))
  if not packed then return end
  local row = cmsgpack.unpack(packed)
  local job = (stem or id) .. '-' .. event
  row[G.rows.new_job.id] = job
  local before = rawget(q, 'any_backlog')
  q.any_backlog = true
  G.add_rows(q, { row }, quiet == '1')
  q.any_backlog = before
  if G.exists(q, job) then G.set(q, job, 'jobBatch', q.P .. id) end
end

-- An unfinished batch is in `batches`, by the time of its last check. A finished one expires.
local function keep_or_expire(q, id, h, finished, now)
  if finished then
    local ttl = h.failed > 0 and KEEP_FAILED_MS or math.max(1, G.count_of(h.keep))
    redis.call('ZREM', q.batches, id)
    G.expire_temporary(q, 'batch:' .. id, now, ttl)
    G.expire_temporary(q, 'batch-jobs:' .. id, now, ttl)
  elseif h.was_finished then
    redis.call('PERSIST', B.key(q, id))
    redis.call('PERSIST', B.jobs_key(q, id))
    redis.call('ZADD', q.batches, G.int(now), id)
  end
end

-- Write changed counts. Callbacks come first: if one cannot be added, nothing has changed, and the report is repeated.
B.update = function(q, id, h, now)
  local finished, now_text, fields = B.is_finished(h), G.int(now), {}
  local function once(event)
    local field = event .. 'At'
    if h[field] then return end
    add_callback(q, id, event)
    G.append(fields, field, now_text)
  end
  if h.failed > 0 then once('failure') end
  if finished then once('complete') end
  if finished and h.failed <= 0 then once('success') end
  if h.closed then G.append(fields, 'closed', h.closed) end
  for _, name in ipairs(COUNTS) do G.append(fields, name, G.int(h[name])) end
  redis.call('HSET', B.key(q, id), unpack(fields))
  keep_or_expire(q, id, h, finished, now)
end

-- Return the new state of a job that was in the state `was`; 'removed', or nil = unchanged. What has ended stays so if
-- its record is removed; only a failed job can be requeued.
local function next_state(was, how)
  if how == F.COMPLETED then return was ~= COMPLETED and COMPLETED or nil end
  if how == F.FAILED then return was == OPEN and FAILED or nil end
  if how == F.REMOVED then return was == OPEN and 'removed' or nil end
  if how == F.RETRIED then return was == FAILED and OPEN or nil end
  return nil
end

-- Record how the job `member` of the batch `id` of this queue ended. generation: the batch's as the job knows it; a later
-- batch with its id has another stem.
B.record = function(q, id, member, how, now, generation)
  local jobs = B.jobs_key(q, id)
  local was = redis.call('HGET', jobs, member)
  local state = was and next_state(was, how)
  local h = state and B.read(q, id)
  if not h or G.given(generation) and generation ~= h.stem then return end
  h[NAMES[was]] = math.max(0, h[NAMES[was]] - 1)
  local counted = NAMES[state] or 'removed'
  h[counted] = h[counted] + 1
  B.update(q, id, h, now)
  if state == 'removed' then
    redis.call('HDEL', jobs, member)
  else
    redis.call('HSET', jobs, member, state)
  end
end

-- A job of the batch `batch` (its `P` and id) has ended. In a cluster its queue may be in another slot.
B.job_ended = function(q, id, batch, how, now)
  local to = F.parent_of(batch)
  if not to then return end
  to.id = B.PARENT .. to.id
  F.with_generations(q, id, { to })
  if to.P == q.P then return F.record_child_end(q, to, q.P .. id, how, '', '', now) end
  F.notify_by_outbox(q, to, q.P .. id, how, '', '')
end

-- Check a key of a batch: return whether its batch does not exist, or is unfinished and not in `batches`. The second
-- value is the id of the latter.
B.mismatch = function(q, suffix)
  local id = string.match(suffix, '^batch%-jobs:(.+)$')
  if id then return redis.call('EXISTS', B.key(q, id)) == 0 end
  id = string.match(suffix, '^batch:(.+)$')
  local h = B.read(q, id)
  if not h then return true end
  return not h.was_finished and not redis.call('ZSCORE', q.batches, id), id
end

B.repair = function(q, suffix, now)
  local wrong, id = B.mismatch(q, suffix)
  if not wrong then return 0 end
  return id and redis.call('ZADD', q.batches, G.int(now), id) or redis.call('UNLINK', q.P .. suffix)
end

-- Append the fields of a job of the batch to the further fields of its record.
B.with_fields = function(q, fields, batch)
  local member, stem = batch[JOINED.member], batch[JOINED.stem]
  local to = F.parent_of(member)
  local more = { 'jobBatch', member, 'parentIds', '[]', 'parentQueues', '[]', F.link(to.P .. B.PARENT .. to.id), stem }
  G.use_feature(q, B.FEATURE)
  fields = fields or {}
  for _, text in ipairs(more) do fields[#fields + 1] = text end
  return fields
end
