-- What the consistency check and its repairs go by (docs/operate/consistency.md): which states belong to which place,
-- how a record is recognized when it is looked at again.
local C = G.checks

local FIELDS = { 'state', 'name', 'eid', 'fence', 'processedOn', 'delay', 'priority', 'lifo', 'timestamp', 'groupKey',
  'orderingSeq', 'slot', 'attemptsMade', 'finishedOn', 'lastActive', 'suspendedAt', 'suspendTimeout', 'src',
  'building' }
local MARKED = { 'state', 'eid', 'fence', 'processedOn', 'delay', 'priority', 'attemptsMade', 'slot' }

local READY = { waiting = true, prioritized = true, delayed = true }

-- States of the jobs that a place may name.
C.FITS = {
  stream = { waiting = true }, pending = { active = true, waiting = true },
  lifo = READY, priority = READY, ['list-popped'] = READY,
  scheduled = { delayed = true, prioritized = true },
  completed = { completed = true }, failed = { failed = true }, suspended = { suspended = true },
  groupq = { ['group-waiting'] = true }, ['waiting-children'] = { ['waiting-children'] = true },
  suspects = { waiting = true }, ['list-active-ids'] = { active = true }, ['list-taken'] = { active = true },
  ['stall-watch'] = { active = true, waiting = true },
}

-- The job's record; nil and 'gone', 'foreign' (the key is no hash) or 'ghost' (a write that came after the removal).
C.read = function(q, id)
  local values = redis.pcall('HMGET', q.J .. id, unpack(FIELDS))
  if values.err then return nil, 'foreign' end
  local h = {}
  for i = 1, #FIELDS do h[FIELDS[i]] = values[i] or nil end
  -- A malformed record of which there is more than what is written to any job is for its owner to look at.
  if h.state and (h.name or redis.call('HEXISTS', q.J .. id, 'opts') == 1) then return h end
  return nil, redis.call('EXISTS', q.J .. id) == 1 and 'ghost' or 'gone'
end

-- Changes whenever the job is moved.
C.mark = function(h)
  local parts = {}
  for i = 1, #MARKED do parts[i] = h[MARKED[i]] or '' end
  return table.concat(parts, '|')
end

-- Whether the stream has this entry for the job.
C.has_entry = function(q, id, entry)
  if not entry or entry == '' then return false end
  local found = redis.pcall('XRANGE', q.stream, entry, entry)
  return not found.err and found[1] ~= nil and G.entry_job(found[1][2]) == id
end

C.is_pending = function(q, entry)
  local found = redis.pcall('XPENDING', q.stream, G.GROUP, entry, entry, 1)
  return not found.err and #found > 0
end

-- A job that ends under a peer's worker is watched until the sweep of reclaim comes by; much later than that nobody has
-- swept.
local WATCH_OVERDUE = 86400000

local function was_watched_lately(q, id)
  local seen = redis.call('HGET', q.stall_watch, id)
  local at = tonumber(string.match(seen or '', '|(%d+)$') or '')
  return at ~= nil and at > G.now(q) - WATCH_OVERDUE
end

-- A popped job is activated within milliseconds, and recovered after a lock duration; this is twice the default one.
local POPPED_OVERDUE = 60000

-- Why a member of a place that fits its state should not be there all the same.
local function misplaced(q, source, id, entry, h)
  if source == 'list-popped' then return G.is_popped(q, id, G.now(q) - POPPED_OVERDUE) and 'popped' or nil end
  if source ~= 'stream' and source ~= 'lifo' and source ~= 'priority' then return nil end
  if h.eid and h.eid ~= '' and h.eid ~= entry and C.has_entry(q, id, h.eid) then return 'twice' end
  -- Where the state is `waiting`, it is the member of the scheduled set that should not be there.
  return h.state ~= 'waiting' and redis.call('ZSCORE', q.scheduled, id) and 'twice' or nil
end

-- Why a member of a place should not be there, or nil: 'gone', 'foreign', 'ghost', 'state', 'twice' or 'popped' (its
-- worker died between pop and activation, and nothing has recovered the job). entry: the stream entry that is looked at.
-- Second value: the record, where there is one.
C.misfit = function(q, source, id, entry)
  local h, why = C.read(q, id)
  if source == 'stall-watch' and was_watched_lately(q, id) then return nil, h end
  if not h then return why end
  if not C.FITS[source][h.state] then return 'state', h end
  return misplaced(q, source, id, entry, h), h
end

-- Sets of which a member is taken out by name.
C.SETS = { scheduled = 'ZREM', completed = 'ZREM', failed = 'ZREM', suspended = 'ZREM', ['list-active-ids'] = 'ZREM',
  ['list-popped'] = 'ZREM', suspects = 'ZREM', ['waiting-children'] = 'ZREM', ['list-taken'] = 'SREM', ['stall-watch'] = 'HDEL' }

-- Deduplication entries that are kept in order by the sweep of reclaim; much later than that nobody has swept.
local DEDUP_OVERDUE = 86400000

C.dedup_is_stale = function(q, dedup_id, at, now)
  if at > now - DEDUP_OVERDUE then return false end
  local id = string.match(redis.call('HGET', q.dedup, dedup_id) or '', '^(.*):%d+$')
  local state = id and redis.pcall('HGET', q.J .. id, 'state')
  return type(state) ~= 'string' or G.TERMINAL[state] or false
end
