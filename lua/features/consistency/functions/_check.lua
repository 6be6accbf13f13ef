-- Share the rules of the consistency check and its repairs (docs/operate/consistency.md): the states per place, and how
-- a changed record is detected.
local C = G.checks

local FIELDS = { 'state', 'name', 'eid', 'fence', 'processedOn', 'delay', 'priority', 'lifo', 'timestamp', 'groupKey',
  'orderingSeq', 'slot', 'attemptsMade', 'finishedOn', 'lastActive', 'suspendedAt', 'suspendTimeout', 'src',
  'building', 'lease', 'rank', 'rankedAs', 'fairKey' }
local MARKED = { 'state', 'eid', 'fence', 'processedOn', 'delay', 'priority', 'attemptsMade', 'slot', 'rankedAs' }

local READY = { waiting = true, prioritized = true, delayed = true }

-- States of the jobs that a place may contain.
C.FITS = {
  stream = { waiting = true }, pending = { active = true, waiting = true },
  lifo = READY, priority = READY, ['list-popped'] = READY,
  scheduled = { delayed = true, prioritized = true },
  completed = { completed = true }, failed = { failed = true }, suspended = { suspended = true },
  groupq = { ['group-waiting'] = true }, ['waiting-children'] = { ['waiting-children'] = true },
  suspects = { waiting = true }, ['list-active-ids'] = { active = true }, ['list-heartbeats'] = { active = true },
  ['stall-watch'] = { active = true, waiting = true }, leases = { active = true },
  ['ranked-above'] = { prioritized = true }, ['ranked-below'] = { prioritized = true },
  ['delayed-own'] = { delayed = true },
  ['fair-delayed'] = { delayed = true }, fairq = { waiting = true },
}

-- Return the job's record; else nil and 'gone', 'foreign' (the key is no hash) or 'ghost' (written after the job was
-- removed).
C.read = function(q, id)
  local values = G.pcall('HMGET', q.J .. id, unpack(FIELDS))
  if values.err then return nil, 'foreign' end
  local h = {}
  for i = 1, #FIELDS do h[FIELDS[i]] = values[i] or nil end
  -- A malformed record with more fields than any write creates is left for its owner.
  if h.state and (h.name or redis.call('HEXISTS', q.J .. id, 'opts') == 1) then return h end
  return nil, G.exists(q, id) and 'ghost' or 'gone'
end

-- Return a mark of the record that changes whenever the job moves.
C.mark = function(h)
  local parts = {}
  for i = 1, #MARKED do parts[i] = h[MARKED[i]] or '' end
  return table.concat(parts, '|')
end

-- Return whether the stream has this entry for the job.
C.has_entry = function(q, id, entry)
  return entry and entry ~= '' and G.job_at(q, entry) == id or false
end

-- A job watched for a Node peer is removed from `stall-watch` by recover_stalled. Entries older than this are
-- leftovers.
local WATCH_OVERDUE = 86400000

local function was_watched_lately(q, id)
  local seen = redis.call('HGET', q.stall_watch, id)
  local at = tonumber(G.match(seen, '|(%d+)$'))
  return at ~= nil and at > G.now(q) - WATCH_OVERDUE
end

-- A popped job is activated within milliseconds and recovered after a lock duration; this is twice the default one.
local POPPED_OVERDUE = 60000

local LISTED = { stream = true, lifo = true, priority = true }
-- Their members have the order of the job before its id.
C.RANKED = { ['ranked-above'] = true, ['ranked-below'] = true }

-- Return why a member whose state fits the place is still wrong there.
local function misplaced(q, source, id, entry, h)
  if source == 'list-popped' then return G.is_popped(q, id, G.now(q) - POPPED_OVERDUE) and 'popped' or nil end
  if C.RANKED[source] then return G.ranks.member_of(h, id) ~= entry and 'twice' or nil end
  if not LISTED[source] then return nil end
  if h.eid and h.eid ~= '' and h.eid ~= entry and C.has_entry(q, id, h.eid) then return 'twice' end
  -- If the state is `waiting`, the member of the scheduled set is the wrong one.
  return h.state ~= 'waiting' and redis.call('ZSCORE', q.scheduled, id) and 'twice' or nil
end

-- Return why a member of a place is wrong there, or nil: 'gone', 'foreign', 'ghost', 'state', 'twice' or 'popped' (its
-- worker died between pop and activation, and the job was not recovered). entry: the stream entry of the member. The
-- second value is the record, if there is one.
C.mismatch = function(q, source, id, entry)
  local h, why = C.read(q, id)
  if not C.FITS[source] then return nil, h end
  if source == 'stall-watch' and was_watched_lately(q, id) then return nil, h end
  if source == 'leases' and not G.leases.is_overdue(q, id, G.now(q)) then return nil, h end
  if not h then return why end
  if not C.FITS[source][h.state] then return 'state', h end
  return misplaced(q, source, id, entry, h), h
end

-- The command that removes a member from a set, if it is not ZREM.
C.REMOVE = { ['list-active-ids'] = 'SREM', ['stall-watch'] = 'HDEL' }

-- recover_stalled keeps deduplication entries in order. Entries older than this are leftovers.
local DEDUP_OVERDUE = 86400000

C.dedup_is_stale = function(q, dedup_id, at, now)
  if at > now - DEDUP_OVERDUE then return false end
  local id = G.match(redis.call('HGET', q.dedup, dedup_id), '^(.*):%d+$')
  local state = id and G.state_of(q, id)
  return not state or G.TERMINAL[state] or false
end
