-- Report an attempt whose handler met a limit of the whole group: the group is rate limited, and no attempt is counted.
--   5 {kind, id, entry, fence, processed_on, ms, replace 0|1, 'front' | 'back' | 'fail' [, keep]}
-- Status G.LIMITED, or G.FAILED for 'fail'. 'front': the job keeps its slot and runs first; 'back': it runs after the
-- jobs parked now, and its slot is freed.

local F = G.finishing
local ROW = G.rows.group_limited
local PARKED = { ['group-waiting'] = true, waiting = true, delayed = true }
local FAILED = { failed = true }
local REASON = 'group rate limited'

-- Rate limit the group until then. A later time stays unless it is to be replaced. Return the time.
G.rate_limit_group = function(q, name, now, duration, replace, id)
  local at = G.clamped_time(now + duration)
  G.note_clock(q, now)
  if not replace then at = math.max(at, G.latest_limit(q, name)) end
  local key = q.P .. 'group:' .. name
  redis.call('ZADD', q.ratelimited, G.score(at), name)
  q.any_limited = true
  -- Distinguishes this limit from one of window or bucket (limits.lua); a group without jobs has none of those.
  if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'heldUntil', G.text(at)) end
  G.emit(q.events, 'group-rate-limited', id, 'groupKey', name, 'duration', G.int(duration), 'resumeAt', G.text(at))
  return at
end

local function park(b, id, h, how)
  local M = G.groups -- defined after this file is read
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

G.finish_kinds[G.report_kinds.group_limited] = function(b, row)
  local q, id, how = b.q, row[ROW.id], row[ROW.how]
  local rejected = F.current(q.J .. id, row, how == 'fail' and FAILED or PARKED)
  if rejected then return rejected end
  local h = G.job_of(q, id)
  if not h.groupKey then error('job ' .. id .. ' belongs to no group') end
  G.rate_limit_group(q, h.groupKey, b.now, row[ROW.ms], row[ROW.replace] == 1, id)
  if how ~= 'fail' then
    park(b, id, h, how)
    F.leave_source(b, row)
    G.add_ready_group(b.fetching, h.groupKey)
    return G.LIMITED
  end
  G.report_to_scheduler(q, id, b.now)
  return F.fail_at_once(b, row, h.groupKey, REASON, 'GroupRateLimitError', row[ROW.keep])
end
