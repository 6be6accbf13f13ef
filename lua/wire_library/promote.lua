-- glidemq_promote: promote due jobs.   KEYS 1 scheduled, 2 stream, 3 events   ARGV 1 now
--   -> members removed from the scheduled set; at most 1,000 per call
-- glidemq_nextDue: return the next due time.   KEYS 1 scheduled, 2 ratelimited   -> epoch ms, or -1
-- glidemq_promoteRateLimited: start jobs of groups whose rate limit has ended.
--   KEYS 1 ratelimited, 2 stream   ARGV 1 now   -> jobs promoted; at most 100 groups per call
local W = G.W

local PROMOTIONS_MAX, GROUPS_MAX, BANDS_MAX = 1000, 100, G.PRIORITY_MAX + 1

-- Order members with one score by number if their ids are numbers: first in, first out.
local function in_order(a, b)
  if a.score ~= b.score then return a.score < b.score end
  if a.number and b.number and a.number ~= b.number then return a.number < b.number end
  if (a.number ~= nil) ~= (b.number ~= nil) then return a.number ~= nil end
  return a.member < b.member
end

local function due_in_band(q, band, now, limit)
  local low, high = G.band_start(band), W.scheduled_score(band, now)
  local found = redis.call('ZRANGEBYSCORE', q.scheduled, low, high, 'WITHSCORES', 'LIMIT', 0, limit)
  local rows = {}
  for i = 1, #found, 2 do
    local number = string.find(found[i], '^%d+$') and tonumber(found[i]) or nil
    rows[#rows + 1] = { member = found[i], score = tonumber(found[i + 1]), number = number }
  end
  table.sort(rows, in_order)
  return rows
end

-- Return a retry of one subscription to the stream for that subscription only.
local function promote_broadcast(q, id, group, h)
  redis.call('XADD', q.stream, '*', 'jobId', id, 'name', h.name or '', 'retryGroup', group)
  G.ring(q)
  redis.call('HSET', q.J .. id, 'state', 'waiting')
end

-- The priority of the score, not of the hash, determines the list. A member without a job is deleted.
local function promote(q, member, band, now)
  redis.call('ZREM', q.scheduled, member)
  local id, group = string.match(member, '^(.-)||(.*)$')
  local h = W.job(q, id or member)
  if not h.state or (not id and W.TERMINAL[h.state]) then return end
  if W.expired_now(q, id or member, h, now) then return end
  if id then promote_broadcast(q, id, group, h) else W.make_ready(q, member, h, band) end
  G.emit(q.events, 'promoted', id or member)
end

-- Return the priority and time of the first member of this or a later priority.
local function first_from(scheduled, band)
  local low = G.band_start(band)
  local found = redis.call('ZRANGEBYSCORE', scheduled, low, G.BELOW_SCHEDULED_END, 'WITHSCORES', 'LIMIT', 0, 1)
  return G.band_of(found[2])
end

G.export('promote', { 'allow-oom' }, function(keys, args)
  local q, now, promoted = W.queue(keys[1], 'scheduled'), W.num(args[1]), 0
  G.repair_scheduled(q, now)
  G.flows.notify_more(q, G.now(q))
  local band = first_from(q.scheduled, 0)
  for _ = 1, BANDS_MAX do
    if not band or promoted >= PROMOTIONS_MAX then return promoted end
    local due = due_in_band(q, band, now, PROMOTIONS_MAX - promoted)
    for _, row in ipairs(due) do promote(q, row.member, band, now) end
    promoted = promoted + #due
    band = first_from(q.scheduled, band + 1)
  end
  return promoted
end)

-- Read every priority, so that a job due much later does not hide due jobs of later priorities.
G.export('nextDue', { 'no-writes' }, function(keys)
  local due
  local band, at = first_from(keys[1], 0)
  for _ = 1, BANDS_MAX do
    if not band then break end
    due = math.min(due or at, at)
    if due == 0 then break end
    band, at = first_from(keys[1], band + 1)
  end
  local limited = redis.call('ZRANGE', keys[2], 0, 0, 'WITHSCORES')[2]
  if limited then due = math.min(due or G.TIME_MAX, G.clamped_time(limited)) end
  return due and math.floor(due) or -1
end)

G.export('promoteRateLimited', { 'allow-oom' }, function(keys, args)
  local q, now, promoted = W.queue(keys[1], 'ratelimited'), W.num(args[1]), 0
  G.repair_times(keys[1], G.TIME_MAX, 0)
  local due = redis.call('ZRANGEBYSCORE', keys[1], '-inf', W.score(now), 'LIMIT', 0, GROUPS_MAX)
  for _, name in ipairs(due) do
    if promoted >= PROMOTIONS_MAX then return promoted end
    redis.call('ZREM', keys[1], name)
    promoted = promoted + W.promote_parked(q, W.group(q, name), now, PROMOTIONS_MAX - promoted)
  end
  return promoted
end)
