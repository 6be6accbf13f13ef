-- A finished row of an attempt whose handler met a limit of the whole group: the group rests, no attempt is spent.
--   {5, id, entry, fence, processed_on, ms, replace 0|1, 'front' | 'back' | 'fail' [, keep]}
-- Status G.LIMITED, or G.FAILED where the job was to fail. 'front': it keeps its slot (W4) and goes on first; 'back':
-- behind those that are parked now, its slot is free.

local F = G.finishing
local ID, FENCE, PROCESSED_ON, DURATION, REPLACE, HOW, KEEP = 2, 4, 5, 6, 7, 8, 9
local PARKED = { ['group-waiting'] = true, waiting = true, delayed = true }
local FAILED = { failed = true }
local REASON = 'group rate limited'

-- No job of the group begins before then; a later time stands unless it is to be replaced. Returns the time.
G.hold_group = function(q, name, now, duration, replace, id)
  local at = G.clamped_time(now + duration)
  if not replace then at = math.max(at, G.latest_limit(q, name)) end
  local key = q.P .. 'group:' .. name
  redis.call('ZADD', q.ratelimited, G.score(at), name)
  q.any_limited = true
  -- Tells this from what a window or a bucket made wait (limits.lua); a group that has no jobs has no such.
  if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'heldUntil', G.text(at)) end
  G.emit(q.events, 'group-rate-limited', id, 'groupKey', name, 'duration', G.int(duration), 'resumeAt', G.text(at))
  return at
end

local function park(b, id, h, how)
  local M = G.groups -- made after this file is read
  local g = M.group(b.q, h.groupKey)
  if M.holds_slot(g, h) then
    if how == 'front' and G.count_of(h.orderingSeq) > 0 then
      M.keep_slot(b.q, id, h)
    else
      M.free_slot(b.q, g, id)
      h.slot = '0'
    end
  end
  M.park(b.q, g, id, h)
  local last = how == 'back' and M.last_place(g)
  if last then redis.call('ZADD', g.queue, G.score(last + 1), id) end
  redis.call('HDEL', b.q.J .. id, 'stalledCount', 'suspectLimit')
end

G.finish_kinds[5] = function(b, row)
  local q, id, how = b.q, row[ID], row[HOW]
  local refused = G.refused_attempt(F.read(q.J .. id), row[FENCE], row[PROCESSED_ON], how == 'fail' and FAILED or PARKED)
  if refused then return refused end
  local h = G.job_of(q, id)
  if not h.groupKey then error('job ' .. id .. ' belongs to no group') end
  G.hold_group(q, h.groupKey, b.now, row[DURATION], row[REPLACE] == 1, id)
  if how ~= 'fail' then
    park(b, id, h, how)
    F.leave_source(b, row)
    G.group_may_go_on(b.fetching, h.groupKey)
    return G.LIMITED
  end
  local scheduler = redis.call('HGET', q.J .. id, 'schedulerName')
  if scheduler then G.schedule_job_ended(q, scheduler, id, b.now) end
  return F.fail_at_once(b, row, h.groupKey, REASON, 'GroupRateLimitError', row[KEEP])
end
