-- check_jobs: check whether jobs are in the place of their state. Changes nothing.
-- KEYS 1 meta   ARGV 1 packed ids   -> packed {lost, unsure, members}
-- lost: {id, state or 'ghost' or 'foreign', mark} of jobs in no place
-- unsure: {id, state, mark, 1 = may be a peer's list job, ms since its last heartbeat} of waiting or active jobs not
-- found by one read; the caller knows whether it found them in the stream, the lists or the pending entries
-- members: {id, group, sequence, hold, calm} of unfinished jobs in groups; hold: 0 no slot, 1 a slot, 2 perhaps; calm:
-- 1 = it is parked or active
-- check_keys: return the keys that belong to missing jobs, staged writes or batches, staged writes and unfinished
-- batches in no index, and the key of a result sequence that is off.
--   ARGV 1 packed suffixes (log:7, write:w:tried, results)   -> packed suffixes
-- Bound: a few reads per job.

local C = G.checks
local M = G.groups

local INDEX = { completed = 'completed', failed = 'failed', suspended = 'suspended', delayed = 'scheduled',
  prioritized = 'scheduled' }

-- The highest usable score of a member of the state's index; a job with a higher one would stay there forever.
local SCHEDULED, EVER, NEVER = (G.PRIORITY_MAX + 1) * G.BAND - 1, 9007199254740991, 9999999999999
local LATEST = { delayed = SCHEDULED, prioritized = SCHEDULED, completed = G.TIME_MAX, failed = G.TIME_MAX,
  suspended = NEVER }

local function has_usable_score(key, id, latest)
  local score = tonumber(redis.call('ZSCORE', key, id))
  return score ~= nil and score <= (latest or EVER) and score >= -EVER
end

-- A peer's library frees and takes slots without updating the record, hence `perhaps`.
C.hold = function(g, h)
  local holds = M.holds_slot(g, h)
  if h.slot == '1' then return h.state == 'group-waiting' and 2 or 1 end
  if h.state == 'active' then return holds and 1 or 2 end
  if holds then return 2 end
  if h.state == 'group-waiting' or not h.processedOn then return 0 end
  local seq = G.count_of(h.orderingSeq)
  return seq > 0 and seq < g.nextSeq and 2 or 0
end

local function has_children(q, id, h) return h.building ~= nil or G.flows.open(q, id) > 0 end

local function is_ready(q, id, h)
  if h.fairKey and G.fair.is_waiting(q, id, h.fairKey) then return true end
  return redis.call('ZSCORE', q.suspects, id) and true or C.has_entry(q, id, h.eid) or nil
end

local function own_place(q, id, h)
  if h.fairKey and h.state == 'delayed' then return q.fair_delayed, id end
  return G.ranks.place_of(q, id, h)
end

-- Return true if the job is in its place, false if it is not, nil if one read does not show it.
C.is_placed = function(q, id, h)
  local index = INDEX[h.state]
  local own, member = own_place(q, id, h)
  if index == 'scheduled' and own then return has_usable_score(own, member) end
  if index then return has_usable_score(q.P .. index, id, LATEST[h.state]) end
  if h.state == 'group-waiting' then return has_usable_score(q.P .. 'groupq:' .. (h.groupKey or ''), id) end
  if h.state == 'waiting' then return is_ready(q, id, h) end
  if h.state == 'active' then
    if G.leases.is_unlisted(q, id, h) then return false end
    if G.is_list_job(q, id) then return true end
    return C.has_entry(q, id, h.eid) and G.is_pending(q, h.eid) or nil
  end
  -- A job waiting for its children is in no place (peers have none), but it must have something to wait for.
  return has_children(q, id, h)
end

local function maybe_foreign(h) return h.lifo == '1' or h.src == 'l' or G.count_of(h.priority) > 0 end

G.export('check_jobs', { 'no-writes' }, function(q, r)
  local ids = r.ids
  local lost, unsure, members, now = {}, {}, {}, G.now(q)
  for _, id in ipairs(ids) do
    local h, why = C.read(q, id)
    if not h then
      if why ~= 'gone' then lost[#lost + 1] = G.new.lost_job({ id = id, state = why, mark = '' }) end
    else
      local placed = C.is_placed(q, id, h)
      if placed == false then lost[#lost + 1] = G.new.lost_job({ id = id, state = h.state, mark = C.mark(h) }) end
      if placed == nil then
        local silent = now - G.num(h.lastActive)
        unsure[#unsure + 1] = G.new.unsure_job({
          id = id, state = h.state, mark = C.mark(h), may_be_list_job = maybe_foreign(h) and 1 or 0,
          silent = math.max(0, silent),
        })
      end
      if h.groupKey and not G.TERMINAL[h.state] then
        local g = M.group(q, h.groupKey)
        local calm = (h.state == 'group-waiting' or h.state == 'active') and 1 or 0
        members[#members + 1] = G.new.group_member({
          id = id, group = h.groupKey, sequence = G.count_of(h.orderingSeq), slot = C.hold(g, h), calm = calm,
        })
      end
    end
  end
  return { lost = lost, unsure = unsure, members = members }
end)

G.export('check_keys', { 'no-writes' }, function(q, r)
  local orphans = {}
  for _, suffix in ipairs(r.suffixes) do
    local lost
    if string.sub(suffix, 1, 6) == 'write:' then
      lost = G.staging.mismatch(q, suffix)
    elseif string.sub(suffix, 1, 5) == 'batch' then
      lost = G.batches.mismatch(q, suffix)
    elseif suffix == 'results' then
      lost = G.results.is_orphan(q)
    else
      lost = not G.exists(q, string.match(suffix, ':(.*)$'))
    end
    if lost then orphans[#orphans + 1] = suffix end
  end
  return orphans
end)
