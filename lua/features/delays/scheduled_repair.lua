-- Repair members of the scheduled set with a score that no time and priority give (infinite, or beyond the last
-- priority). Peers write such scores for an infinite delay or a priority out of range; no worker would ever fetch the
-- job. They get the score of their record, a few per call; a job without a delay is due now.

local REPAIRS_MAX = 20

local BARS_MAX = 20 -- a member with more is split at the first

-- Return the job of a member of `scheduled`, and the subscription if it is a further attempt of one (`id||subscription`).
-- Ids of peers and names of subscriptions may contain `||`: the record that exists decides.
G.scheduled_job = function(q, member)
  local first = string.find(member, '||', 1, true)
  if not first or G.exists(q, member) then return member end
  local at = first
  for _ = 1, BARS_MAX do
    if not at or G.exists(q, string.sub(member, 1, at - 1)) then break end
    at = string.find(member, '||', at + 1, true)
  end
  at = at or first
  return string.sub(member, 1, at - 1), string.sub(member, at + 2)
end

-- Return the job of a member of a set of jobs.
G.job_of_member = function(q, key, member)
  if key == q.scheduled then return (G.scheduled_job(q, member)) end
  return (key == q.ranked_above or key == q.ranked_below) and G.ranks.id_of(member) or member
end

local function due_of(delay, timestamp, now)
  delay = G.duration(delay)
  if delay <= 0 then return now end
  return math.max(now, G.clamped_time(timestamp) + delay)
end

local function repair(q, member, now)
  local id, group = G.scheduled_job(q, member)
  local h = G.pcall('HMGET', q.J .. id, 'state', 'priority', 'delay', 'timestamp')
  local state, priority, delay, timestamp = unpack(h)
  if not state or (not group and G.NOT_WAITING[state]) then return redis.call('ZREM', q.scheduled, member) end
  -- A subscription's retry has its delay only in its score.
  local score = group and G.int(now) or G.scheduled_score(priority, due_of(delay, timestamp, now))
  redis.call('ZADD', q.scheduled, score, member)
end

G.repair_scheduled = function(q, now)
  local found = redis.call('ZRANGEBYSCORE', q.scheduled, G.SCHEDULED_END, '+inf', 'LIMIT', 0, REPAIRS_MAX)
  for _, member in ipairs(found) do repair(q, member, now) end
end
