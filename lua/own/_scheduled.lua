-- The scheduled set by state. Its bands are priorities (data-model.md section 7): in band 0 all wait for their time; in
-- the others a job whose time has come is ready and stays there until a worker takes it, any other one is delayed.

local BANDS_MAX = 256 -- looks of one call; who uses more priorities gets what is left as prioritized

-- The lowest band from `from` on in which there is anything; nil = none.
G.next_band = function(q, from)
  local found = redis.call('ZRANGEBYSCORE', q.scheduled, G.int(from * G.BAND), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return found[2] and math.floor(tonumber(found[2]) / G.BAND)
end

-- -> delayed, prioritized
G.count_scheduled = function(q, now)
  local prioritized = redis.call('ZCOUNT', q.scheduled, G.int(G.BAND), '+inf')
  local delayed = redis.call('ZCARD', q.scheduled) - prioritized
  if prioritized == 0 then return delayed, 0 end
  local band = G.next_band(q, 1)
  for _ = 1, BANDS_MAX do
    if not band then break end
    local late = redis.call('ZCOUNT', q.scheduled, '(' .. G.int(band * G.BAND + now), '(' .. G.int((band + 1) * G.BAND))
    delayed, prioritized = delayed + late, prioritized - late
    band = G.next_band(q, band + 1)
  end
  return delayed, prioritized
end

-- Bounds of a state in a band: lowest score as a command takes it, and the score that is beyond.
G.band_bounds = function(band, now, ready)
  local low = band * G.BAND
  if ready then return G.int(low), low + now + 1 end
  return band == 0 and '-inf' or G.int(low + now + 1), low + G.BAND
end
