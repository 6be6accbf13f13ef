-- Repair members of the scheduled set with a score that no time and priority give (infinite, or beyond the last
-- priority). Peers write such scores for an infinite delay or a priority out of range; no worker would ever fetch the
-- job. They get the score of their record, a few per call; a job without a delay is due now.

local REPAIRS_MAX = 20
local NOT_WAITING = { active = true, completed = true, failed = true }

local function due_of(delay, timestamp, now)
  delay = G.duration(delay)
  if delay <= 0 then return now end
  return math.max(now, G.clamped_time(timestamp) + delay)
end

local function repair(q, member, now)
  local id, group = string.match(member, '^(.-)||(.*)$')
  local h = G.pcall('HMGET', q.J .. (id or member), 'state', 'priority', 'delay', 'timestamp')
  local state, priority, delay, timestamp = unpack(h)
  if not state or (not group and NOT_WAITING[state]) then return redis.call('ZREM', q.scheduled, member) end
  -- A subscription's retry has its delay only in its score.
  local score = group and G.int(now) or G.scheduled_score(priority, due_of(delay, timestamp, now))
  redis.call('ZADD', q.scheduled, score, member)
end

G.repair_scheduled = function(q, now)
  local found = redis.call('ZRANGEBYSCORE', q.scheduled, G.SCHEDULED_END, '+inf', 'LIMIT', 0, REPAIRS_MAX)
  for _, member in ipairs(found) do repair(q, member, now) end
end
