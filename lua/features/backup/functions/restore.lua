-- Write a backup into an empty queue (docs/operate/backup.md). The hash `restore` has the backup and the phase until the
-- end, and a record that is not in its place yet has the field `restored`: so an interrupted restore is repeated without
-- a job being placed twice, and no worker sees a job before all are written. Once placing has begun, jobs may run and be
-- removed: then neither records nor keys are written any more.
-- restore_begin: KEYS 1 meta   ARGV 1 packed {backup, features, last}   -> packed {status, detail}
--   status: ok; again (this backup, interrupted; detail: its phase, writing or placing); other (another backup, in
--   detail); live (detail: the place with jobs)
--   last: the highest id of the backup: the id counter will not be below
-- restore_keys:  KEYS 1 meta   ARGV 1 packed {backup, rows}   -> keys written
--   row: {suffix, kind, ttl, content, first 0|1}, as from backup_keys; first: no earlier row has this key
-- restore_jobs:  KEYS 1 meta   ARGV 1 packed {backup, rows}   -> records written; existing jobs are left
--   row: {id, due, fields}, as from backup_jobs. Finished jobs are placed, too.
-- restore_place: KEYS 1 meta   ARGV 1 packed {backup, rows}   -> jobs placed
--   row: {id, due}: put unfinished jobs in the place of their state, in this order. Jobs of ordering groups are parked.
-- restore_groups: KEYS 1 meta   ARGV 1 packed {backup, names}   -> started: start parked jobs of these groups
--   Call it again until it returns 0.
-- restore_end:   KEYS 1 meta   ARGV 1 packed {backup}   -> 1 ok, 0 = the restore had ended
-- Bound: the rows; the caller sends at most 500 and about 1 MiB.

local ROW = G.rows.restored_job
local PLACED = G.rows.placed_job
local KEY = G.rows.restored_key
local C = G.checks
local M = G.groups

local MARK = 'restored'
local DONE = 'depdone:'

-- Return the phase of the restore.
local function phase_of(q, backup)
  local h = G.pick(q.restore, 'backup', 'phase')
  if h.backup ~= backup then error('ERR no restore of backup ' .. backup .. ' is under way', 0) end
  return h.phase
end

local function check_writing(q, backup)
  if phase_of(q, backup) ~= 'writing' then error('ERR the jobs of backup ' .. backup .. ' are being placed', 0) end
end

-- ------------------------------------------------------------------ begin and end

local PLACES = {
  ZCARD = { 'scheduled', 'completed', 'failed', 'suspended', 'waiting_children', 'ranked_above', 'ranked_below',
    'delayed_own', 'fair_keys', 'fair_delayed' },
  LLEN = { 'lifo', 'priority' },
  XLEN = { 'stream' }, HLEN = { 'ordering', 'schedulers', 'schedulers_own' },
}

local function used_place(q)
  for command, places in pairs(PLACES) do
    for _, place in ipairs(places) do
      if redis.call(command, q[place]) > 0 then return (string.gsub(place, '_', '-')) end
    end
  end
  return nil
end

G.export('restore_begin', { 'allow-oom' }, G.for_operators(function(q, r)
  local rejected = G.feature_error(q.meta, r.features ~= '' and r.features or nil)
  if rejected then return rejected end
  local before, place = G.pick(q.restore, 'backup', 'phase'), used_place(q)
  if before.backup == r.backup then return { status = 'again', detail = before.phase } end
  if before.backup then return { status = 'other', detail = before.backup } end
  if place then return { status = 'live', detail = place } end
  redis.call('HSET', q.restore, 'backup', r.backup, 'phase', 'writing')
  if r.last > G.count_of(redis.call('GET', q.id)) then redis.call('SET', q.id, G.int(r.last)) end
  return { status = 'ok', detail = 'writing' }
end))

G.export('restore_end', { 'allow-oom' }, G.for_operators(function(q, r)
  if redis.call('HGET', q.restore, 'backup') ~= r.backup then return 0 end
  redis.call('UNLINK', q.restore)
  G.wake(q, 1)
  return 1
end))

-- ------------------------------------------------------------------ keys

local WRITE = {}

WRITE.string = function(key, content) redis.call('SET', key, G.first(content)) end
WRITE.hash = function(key, content) G.in_parts('HSET', key, content) end
WRITE.list = function(key, content) G.in_parts('RPUSH', key, content) end
WRITE.set = function(key, content) G.in_parts('SADD', key, content) end

-- ZSCAN returns member and score, ZADD takes score and member.
WRITE.zset = function(key, content)
  local swapped = {}
  for i = 1, #content, 2 do swapped[i], swapped[i + 1] = content[i + 1], content[i] end
  G.in_parts('ZADD', key, swapped)
end

WRITE.stream = function(key, content)
  for i = 1, #content, 2 do redis.call('XADD', key, content[i], unpack(cmsgpack.unpack(content[i + 1]))) end
end

local APPENDED = { list = true, stream = true }

G.export('restore_keys', {}, G.for_operators(function(q, r)
  check_writing(q, r.backup)
  local now = G.now(q)
  for _, row in ipairs(r.rows) do
    local suffix, kind, ttl = row[KEY.suffix], row[KEY.kind], row[KEY.ttl]
    local key = q.P .. suffix
    if row[KEY.first] == 1 and APPENDED[kind] then redis.call('UNLINK', key) end
    -- Whoever paused the queue before the restore wants it paused after it.
    local before = key == q.meta and G.pick(key, 'paused', 'features') or {}
    WRITE[kind](key, row[KEY.content])
    if before.paused then redis.call('HSET', key, 'paused', before.paused) end
    -- It has partitions, whatever the queue of the backup had.
    for feature in string.gmatch(before.features or '', '[^,]+') do G.use_feature(q, feature) end
    if ttl >= 0 then G.expire_temporary(q, suffix, now, ttl) end
  end
  return #r.rows
end))

-- ------------------------------------------------------------------ jobs

-- A record and the set of its children are read at different moments: the record decides which have ended.
local function agree_on_children(q, id, fields)
  local done, members = 0, {}
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, #DONE) == DONE and fields[i + 1] == '1' then
      done = done + 1
      members[done] = string.sub(fields[i], #DONE + 1)
    end
  end
  if done == 0 then return end
  G.in_parts('SADD', q.P .. 'deps:' .. id, members)
  G.set(q, id, 'depsCompleted', G.int(done))
end

G.export('restore_jobs', {}, G.for_operators(function(q, r)
  check_writing(q, r.backup)
  local now, written = G.now(q), 0
  for _, row in ipairs(r.rows) do
    local id, fields = row[ROW.id], row[ROW.fields]
    local key = q.J .. id
    if not G.exists(q, id) or redis.call('HGET', key, MARK) == r.backup then
      G.in_parts('HSET', key, fields)
      local h = G.pick(key, 'state', 'finishedOn')
      if G.TERMINAL[h.state] then
        C.LOST[h.state](q, id, h, now)
      else
        redis.call('HSET', key, MARK, r.backup)
      end
      agree_on_children(q, id, fields)
      written = written + 1
    end
  end
  return written
end))

-- ------------------------------------------------------------------ places

local READY = { waiting = true, prioritized = true, active = true, ['group-waiting'] = true }

-- Count the slot that an unfinished job holds: the group's record is written without its number of active jobs. The
-- record may have been read before the job took its turn.
local function take_slot(q, id, h)
  local g, seq = M.group(q, h.groupKey), G.count_of(h.orderingSeq)
  if not M.holds_slot(g, h) then return end
  if seq > 0 then
    M.keep_slot(q, id, h)
    M.set_counters(g, g.active + 1, g.nextSeq > 0 and math.max(g.nextSeq, seq + 1) or 0)
  else
    G.set(q, id, 'slot', '0')
  end
end

local function place_in_group(q, id, h)
  if h.state == 'active' then G.void_attempt(q, id) end
  M.park(q, M.group(q, h.groupKey), id, h)
end

local function place_parent(q, id, h, now)
  if h.building == nil and G.flows.open(q, id) <= 0 then return G.flows.release(q, id, now) end
  G.flows.wait(q, id, 1) -- it is checked first for children that are gone
end

local function place(q, id, h, due, now)
  if h.groupKey then take_slot(q, id, h) end
  if h.state == 'waiting-children' then return place_parent(q, id, h, now) end
  if READY[h.state] and h.groupKey then return place_in_group(q, id, h) end
  if h.state == 'delayed' and due ~= '' then
    return G.put(q, id, now, h, G.num(due) % G.BAND)
  end
  if h.state == 'active' then return G.return_job(q, id, now, h) end
  local put = C.LOST[h.state == 'suspended' and 'suspended' or h.state == 'delayed' and 'delayed' or 'prioritized']
  put(q, id, h, now)
end

G.export('restore_place', {}, G.for_operators(function(q, r)
  if phase_of(q, r.backup) == 'writing' then redis.call('HSET', q.restore, 'phase', 'placing') end
  local now, placed = G.now(q), 0
  for _, row in ipairs(r.rows) do
    local id = row[PLACED.id]
    local h = redis.call('HGET', q.J .. id, MARK) == r.backup and C.read(q, id)
    if h then
      place(q, id, h, row[PLACED.due], now)
      redis.call('HDEL', q.J .. id, MARK)
      placed = placed + 1
    end
  end
  return placed
end))

G.export('restore_groups', {}, G.for_operators(function(q, r)
  phase_of(q, r.backup)
  local now, started = G.now(q), 0
  for _, name in ipairs(r.names) do started = started + (M.promote_parked(q, M.group(q, name), now) or 0) end
  return started
end))
