-- glidemq_reclaimStalled: recover stalled jobs with a stream entry.
-- KEYS 1 stream, 2 events   ARGV 1 group, 2 consumer, 3 min idle ms, 4 max stalled (1), 5 now, 6 failed key, 7
-- broadcast, 8 lock duration of the worker (0)   -> entries handled, including healthy ones
-- Bound: 1,000 entries read, HANDLED_MAX handled; the next call continues. Healthy jobs stay with their worker and do not
-- hide stalled ones behind them. A subscription whose worker died gets the message again, for itself only.
local W = G.W

local HANDLED_MAX = 300

local function redeliver(q, r, entry, id, h)
  if r.broadcast then
    redis.call('XACK', q.stream, r.group, entry)
    G.push_for(q, id, h.name, r.group)
    G.set(q, id, 'state', 'active')
  else
    W.ack(q, r.group, entry)
    W.reset_stalled(q, id, h)
    G.make_waiting(q, id, h.name)
  end
end

-- States in which a pending entry belongs to the job; any other entry is a leftover.
local function is_live(h, broadcast)
  return broadcast or h.state == 'active' or h.state == 'waiting'
end

local function handle(q, r, entry, id)
  local h = G.job_of(q, id)
  if not h.state or not h.name or not is_live(h, r.broadcast) or W.expired_now(q, id, h, r.now) then
    W.ack(q, r.group, entry, r.broadcast)
  else
    local beat = G.past_time(h.lastActive, r.now)
    if beat and r.now - beat < W.stall_threshold(h, r.lock, r.min_idle) then return end
    if W.stall(q, id, h, r.max_stalled, r.now) then
      W.ack(q, r.group, entry, r.broadcast)
    else
      redeliver(q, r, entry, id, h)
    end
  end
end

-- Return 1 if the entry has a job.
local function check_entry(q, r, entry)
  local id = G.job_at(q, entry)
  if not id then
    W.ack(q, r.group, entry, r.broadcast)
    return 0
  end
  handle(q, r, entry, id)
  return 1
end

G.export('reclaimStalled', { 'allow-oom' }, function(keys, args)
  local q = W.queue(keys[1], 'stream')
  local r = {
    group = args[1], min_idle = G.num(args[3]), max_stalled = G.num(args[4], 1), now = G.num(args[5]),
    broadcast = args[7] == '1', lock = G.num(args[8]),
  }
  local field, handled = 'pending:' .. r.group, 0
  local after = W.cursor(q, field)
  local from = G.match(after, '^%d+%-%d+$') and '(' .. after or '-'
  local last = G.each_idle(q, r.group, r.min_idle, from, HANDLED_MAX, function(p)
    handled = handled + check_entry(q, r, p[1])
  end)
  W.set_cursor(q, field, last ~= '' and last or nil, after)
  return handled
end)
