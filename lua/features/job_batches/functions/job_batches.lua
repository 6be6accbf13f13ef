-- Batches: sets of jobs in any queues, with jobs that are added when all have ended (docs/learn/job-batches.md).
-- batch_create: KEYS 1 meta   ARGV 1 packed {id, stem, complete, success, failure, keep, quiet, layout}   -> 1, or 0 if it exists
--   stem: beginning of the ids of its jobs   complete, success, failure: the row of the callback (add), or false
--   keep: ms after success   layout: number of the layout of the queue's partitions, false = not checked
--   errors: ERR layout (the partition has another layout)
-- batch_join: reserve jobs in the batch; they are added after that.
--   KEYS 1 meta   ARGV 1 packed {id, stem, ids}   -> packed {status, ids, known, stem of the batch}
--   stem: `P` of the jobs' queue   ids: at most 1,000; '' = issue one   status: 'ok', or 'gone', 'finished' or 'cancelled'
--   (nothing is changed)   known: positions of ids that were in the batch before
-- batch_change: KEYS 1 meta   ARGV 1 packed {id, action}   -> 'ok' | 'gone'   action: 'close' or 'cancel': no job may
--   join a cancelled batch
-- batch_status: KEYS 1 meta   ARGV 1 id   -> flat fields and values, empty if there is no such batch
-- batch_jobs: KEYS 1 meta   ARGV 1 packed {id, cursor, count}   -> packed {rows, cursor}   row: {member, 'p', 'c' or 'f'}
--   cursor '' = the start, and the end; a job may be returned twice
-- batches: KEYS 1 meta   ARGV 1 packed {cursor, count}   -> packed {ids, cursor}: the batches that are not finished
-- batch_watch: return jobs of a batch that have not ended, of a batch not checked for `age` ms, for child_outcomes.
--   KEYS 1 meta   ARGV 1 packed {age}   -> packed {parent, members, calm, more}   parent: '' = none, or `batch:<id>`
--   calm: 1 if no job joined for `age` ms, so that a missing job was not about to be added   more: 1 = call again
-- Bound: the ids; a page.

local B = G.batches
local IDS, PAGE = 1000, 500
local STATUS = { 'pending', 'completed', 'failed', 'removed', 'closed', 'cancelled', 'created', 'completeAt', 'successAt',
  'failureAt' }

local function packed(row) return row and cmsgpack.pack(row) or nil end

G.export('batch_create', {}, function(q, r)
  local refused = G.layout.check(q, r.layout)
  if refused then return refused end
  local key, now = B.key(q, r.id), G.now(q)
  if redis.call('EXISTS', key) == 1 then return 0 end
  G.use_feature(q, B.FEATURE)
  local fields = { 'stem', r.stem, 'pending', '0', 'completed', '0', 'failed', '0', 'removed', '0', 'created', G.int(now), 'keep',
    G.int(r.keep), 'quiet', r.quiet and '1' or '0' }
  for name, row in pairs({ onComplete = packed(r.complete), onSuccess = packed(r.success), onFailure = packed(r.failure) }) do
    G.append(fields, name, row)
  end
  redis.call('ZADD', q.batches, G.int(now), r.id)
  redis.call('HSET', key, unpack(fields))
  return 1
end)

local function refused(status) return { status = status, ids = {}, known = {}, stem = '' } end

G.export('batch_join', {}, function(q, r)
  if #r.ids > IDS then error('too many ids: ' .. #r.ids) end
  local key, jobs, now = B.key(q, r.id), B.jobs_key(q, r.id), G.now(q)
  local h = B.read(q, r.id)
  if not h then return refused('gone') end
  if redis.call('HEXISTS', key, 'cancelled') == 1 then return refused('cancelled') end
  if h.was_finished then return refused('finished') end
  local ids, known = {}, {}
  local issued, stem = G.count_of(redis.call('HGET', key, 'issued')), h.stem
  for i, id in ipairs(r.ids) do
    if id == '' then
      issued = issued + 1
      id = stem .. '-' .. G.int(issued)
    end
    ids[i] = id
    if redis.call('HSETNX', jobs, r.stem .. id, 'p') == 1 then
      h.pending = h.pending + 1
    else
      known[#known + 1] = i
    end
  end
  redis.call('HSET', key, 'pending', G.int(h.pending), 'issued', G.int(issued), 'joinedAt', G.int(now))
  return { status = 'ok', ids = ids, known = known, stem = stem }
end)

G.export('batch_change', { 'allow-oom' }, function(q, r)
  local h, now = B.read(q, r.id), G.now(q)
  if not h then return 'gone' end
  if r.action == 'cancel' then redis.call('HSET', B.key(q, r.id), 'cancelled', G.int(now)) end
  if not h.closed then
    h.closed = G.int(now)
    B.update(q, r.id, h, now)
  end
  return 'ok'
end)

G.export('batch_status', { 'no-writes' }, function(q, r)
  return G.stored(B.key(q, r.id), STATUS)
end)

-- Return the pairs of a page of the batch's jobs, and the next cursor.
local function page(q, id, cursor, count) return G.scan('HSCAN', B.jobs_key(q, id), cursor, count) end

G.export('batch_jobs', { 'no-writes' }, function(q, r)
  local pairs_found, cursor = page(q, r.id, r.cursor, math.min(r.count, PAGE))
  local rows = {}
  for i = 1, #pairs_found, 2 do rows[#rows + 1] = G.new.batch_job({ member = pairs_found[i], state = pairs_found[i + 1] }) end
  return { rows = rows, cursor = cursor }
end)

G.export('batches', { 'no-writes' }, function(q, r)
  local found, cursor = G.scan('ZSCAN', q.batches, r.cursor, math.min(r.count, PAGE))
  return { ids = G.members_of(found), cursor = cursor }
end)

local function nothing(more) return { parent = '', members = {}, calm = 0, more = more } end

G.export('batch_watch', { 'allow-oom' }, function(q, r)
  local now = G.now(q)
  local id = G.first(redis.call('ZRANGEBYSCORE', q.batches, '-inf', G.int(now - r.age), 'LIMIT', 0, 1))
  if not id then return nothing(0) end
  local key = B.key(q, id)
  local h = G.pick(key, 'pending', 'watchCursor', 'joinedAt')
  if not h.pending then
    redis.call('ZREM', q.batches, id)
    return nothing(1)
  end
  local members, pairs_found, cursor = {}, page(q, id, h.watchCursor or '', PAGE)
  for i = 1, #pairs_found, 2 do
    if pairs_found[i + 1] == 'p' then members[#members + 1] = pairs_found[i] end
  end
  if cursor == '' then
    redis.call('HDEL', key, 'watchCursor')
    redis.call('ZADD', q.batches, G.int(now), id)
  else
    redis.call('HSET', key, 'watchCursor', cursor)
  end
  return {
    parent = B.PARENT .. id, members = members, calm = G.count_of(h.joinedAt) <= now - r.age and 1 or 0, more = 1,
  }
end)
