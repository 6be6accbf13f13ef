-- glidemq_promote            KEYS 1 scheduled, 2 stream, 3 events   ARGV 1 now
--   -> members taken out of the scheduled set; at most 1000 a call
-- glidemq_nextDue            KEYS 1 scheduled, 2 ratelimited   -> epoch ms of the next due time, or -1
-- glidemq_promoteRateLimited KEYS 1 ratelimited, 2 stream   ARGV 1 now   -> jobs promoted; at most 100 groups a call
local W = G.W

local PROMOTIONS_MAX, GROUPS_MAX, BANDS_MAX = 1000, 100, G.PRIORITY_MAX + 1

-- Members of one score go by number where their ids are numbers, so that first come is first served (W65).
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

-- A retry of one subscription goes back to the stream for that subscription alone.
local function promote_broadcast(q, id, group, h)
  redis.call('XADD', q.stream, '*', 'jobId', id, 'name', h.name or '', 'retryGroup', group)
  redis.call('HSET', q.J .. id, 'state', 'waiting')
end

-- The band of the score, not the hash's priority, names the list. A member without a job is no job (W31).
local function promote(q, member, band, now)
  redis.call('ZREM', q.scheduled, member)
  local id, group = string.match(member, '^(.-)||(.*)$')
  local h = W.job(q, id or member)
  if not h.state or (not id and W.TERMINAL[h.state]) then return end
  if W.expired_now(q, id or member, h, now) then return end
  if id then promote_broadcast(q, id, group, h) else W.make_ready(q, member, h, band) end
  G.emit(q.events, 'promoted', id or member)
end

-- The first member of a band or a later one: its band and its time.
local function first_from(scheduled, band)
  local low = G.band_start(band)
  local found = redis.call('ZRANGEBYSCORE', scheduled, low, G.BELOW_SCHEDULED_END, 'WITHSCORES', 'LIMIT', 0, 1)
  return G.band_of(found[2])
end

G.export('promote', { 'allow-oom' }, function(keys, args)
  local q, now, promoted = W.queue(keys[1], 'scheduled'), W.num(args[1]), 0
  G.repair_scheduled(q, now)
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

-- Every band is asked, so that a job far off does not hide due ones behind it (W59).
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
    promoted = promoted + W.kick(q, W.group(q, name), now, PROMOTIONS_MAX - promoted)
  end
  return promoted
end)
