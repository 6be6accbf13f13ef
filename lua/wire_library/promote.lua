-- glidemq_promote: promote due jobs.   KEYS 1 scheduled, 2 stream, 3 events   ARGV 1 now
--   -> members removed from the scheduled set; at most 1,000 per call
-- glidemq_nextDue: return the next due time.   KEYS 1 scheduled, 2 ratelimited   -> epoch ms, or -1
-- glidemq_promoteRateLimited: start jobs of groups whose rate limit has ended.
--   KEYS 1 ratelimited, 2 stream   ARGV 1 now   -> jobs promoted; at most 100 groups per call
local W = G.W

local PROMOTIONS_MAX, GROUPS_MAX, BANDS_MAX = 1000, 100, G.PRIORITY_MAX + 1

local function due_in_band(q, band, now, limit)
  local low, high = G.band_start(band), G.scheduled_score(band, now)
  local found = redis.call('ZRANGEBYSCORE', q.scheduled, low, high, 'WITHSCORES', 'LIMIT', 0, limit)
  G.sort_ties(found)
  return found
end

-- The priority of the score, not of the hash, determines the list. A member without a job is deleted.
local function promote(q, member, band, now)
  redis.call('ZREM', q.scheduled, member)
  local id, group = G.scheduled_job(q, member)
  local h = G.job_of(q, id)
  if not h.state or (not group and G.TERMINAL[h.state]) then return end
  if W.expired_now(q, id, h, now) then return end
  if group then
    G.push_for(q, id, h.name, group)
    G.set(q, id, 'state', 'waiting')
  else
    W.make_ready(q, id, h, band)
  end
  G.emit(q.events, 'promoted', id)
end

G.export('promote', { 'allow-oom' }, function(keys, args)
  local q, now, promoted = W.queue(keys[1], 'scheduled'), G.num(args[1]), 0
  G.repair_scheduled(q, now)
  G.flows.notify_more(q, G.now(q))
  local band = G.scheduled_from(q.scheduled, '-inf')
  for _ = 1, BANDS_MAX do
    if not band or promoted >= PROMOTIONS_MAX then return promoted end
    local due = due_in_band(q, band, now, PROMOTIONS_MAX - promoted)
    for i = 1, #due, 2 do promote(q, due[i], band, now) end
    promoted = promoted + #due / 2
    band = G.scheduled_from(q.scheduled, G.band_start(band + 1))
  end
  return promoted
end)

-- Read every priority, so that a job due much later does not hide due jobs of later priorities.
G.export('nextDue', { 'no-writes' }, function(keys)
  local due
  local band, at = G.scheduled_from(keys[1], '-inf')
  for _ = 1, BANDS_MAX do
    if not band then break end
    due = math.min(due or at, at)
    if due == 0 then break end
    band, at = G.scheduled_from(keys[1], G.band_start(band + 1))
  end
  local _, limited = G.member_at(keys[2], 0)
  if limited then due = math.min(due or G.TIME_MAX, G.clamped_time(limited)) end
  return due and math.floor(due) or -1
end)

G.export('promoteRateLimited', { 'allow-oom' }, function(keys, args)
  local q, now, promoted = W.queue(keys[1], 'ratelimited'), G.num(args[1]), 0
  G.repair_times(keys[1], G.TIME_MAX, 0)
  local due = redis.call('ZRANGEBYSCORE', keys[1], '-inf', G.score(now), 'LIMIT', 0, GROUPS_MAX)
  for _, name in ipairs(due) do
    if promoted >= PROMOTIONS_MAX then return promoted end
    redis.call('ZREM', keys[1], name)
    promoted = promoted + W.promote_parked(q, W.group(q, name), now, PROMOTIONS_MAX - promoted)
  end
  return promoted
end)
